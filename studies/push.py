"""The push of an objective on length, exactly, without training.

The lengths of answers are geometric: each token is followed by another one with probability `GOES_ON`. They are worth
nothing, since the outcome is drawn independently. The push is the derivative of the loss, by the library's own parts,
with respect to the logit of going on, with the sign of an update: positive makes answers longer.
"""

from random import Random

import torch
from torch import Tensor

from groupwise.data import Batch, pack, rollout_of
from groupwise.methods import Method
from groupwise.training.loop import compute_advantages

GOES_ON, BUDGET = 0.9, 128
GROUPS, GROUP, BATCHES = 16, 16, 40
RIGHT = 0.5
"""The share of right answers."""
Push = tuple[float, float, float]


def push(method: Method, batches: int = BATCHES) -> list[Push]:
    """The push per answer, times 1000, on wrong, right and all answers, for each of several batches."""
    return [_push(method, _batch(Random(i), method)) for i in range(batches)]


def _batch(random: Random, method: Method) -> Batch:
    def length() -> int:
        tokens = 1
        while tokens < BUDGET and random.random() < GOES_ON:
            tokens += 1
        return tokens

    def scores() -> list[float]:
        return [float(random.random() < RIGHT) for _ in range(GROUP)]

    rollouts = [rollout_of(scores(), lengths=[length() for _ in range(GROUP)], limit=BUDGET) for _ in range(GROUPS)]
    batch = pack(rollouts)
    return compute_advantages(batch.having(logp_old=torch.zeros(batch.tokens, dtype=torch.float64)), method)


def gradients(method: Method, batches: int = BATCHES) -> list[Tensor]:
    """The gradient of the loss with respect to the log-prob of each token, for each batch."""
    return [_gradient(method, _batch(Random(i), method)) for i in range(batches)]


def _gradient(method: Method, batch: Batch) -> Tensor:
    step = method.objective.prepare(batch)
    logp = torch.zeros(batch.tokens, dtype=torch.float64, requires_grad=True)
    method.objective(step.having(logp=logp)).backward()
    assert logp.grad is not None
    return logp.grad


def _push(method: Method, batch: Batch) -> Push:
    index = batch.sequences.index
    is_last = torch.cat([index[1:] != index[:-1], torch.ones(1, dtype=torch.bool)])
    score = torch.where(is_last, -GOES_ON, 1 - GOES_ON).double()  # the derivative of log p by the logit of going on
    per_answer = batch.sequences.total(-_gradient(method, batch) * score) * batch.sequences.count * 1000
    wrong, right = batch.outcome == 0, batch.outcome == 1
    return float(per_answer[wrong].mean()), float(per_answer[right].mean()), float(per_answer.mean())
