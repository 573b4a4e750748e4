"""The smallest policy with a length: two numbers, trained by a method's own parts.

An answer is right or wrong by chance. Then the policy writes tokens, and after each it decides whether to go on: with
the probability sigmoid(x), where x is one number after a right guess and another one after a wrong guess. Length is
worth nothing. There is no language model; advantages, objective and divisors are the library's.
"""

from dataclasses import replace
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.advantages import centred
from groupwise.data import Batch, pack, rollout_of
from groupwise.methods import Method, dr_grpo, grpo
from groupwise.objective import token_mean
from groupwise.training.loop import compute_advantages

START, BUDGET = 0.9, 64
GROUPS, GROUP = 16, 16
ITERATIONS, RATE = 150, 0.02
Lengths = list[tuple[float, float]]
"""The mean length of wrong and of right answers, by iteration."""


def objectives() -> dict[str, Method]:
    """The four objectives of the study of length bias."""
    plain = grpo(group_size=16, kl=0.0)
    mean = replace(plain, objective=replace(plain.objective, aggregate=token_mean))
    no_std = replace(plain, advantage=(centred,))
    return {"grpo": plain, "no_std": no_std, "token_mean": mean, "dr_grpo": dr_grpo(group_size=16)}


def train(method: Method, seed: int, iterations: int = ITERATIONS) -> Lengths:
    """Train the two numbers with Adam, one step per iteration."""
    logits = torch.full((2,), START, dtype=torch.float64).logit().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=RATE)
    random, lengths = Random(f"two numbers {seed}"), Lengths()
    for _ in range(iterations):
        batch = sampled(random, logits.detach().sigmoid().tolist())
        logp = log_probs(batch, logits)
        step = batch.having(logp_old=logp.detach())
        step = method.objective.prepare(compute_advantages(step, method))
        optimizer.zero_grad()
        method.objective(step.having(logp=logp)).backward()
        optimizer.step()
        n = batch.sequences.lengths.double()
        lengths.append((float(n[batch.outcome == 0].mean()), float(n[batch.outcome == 1].mean())))
    return lengths


def sampled(random: Random, goes_on: list[float]) -> Batch:
    """A batch of answers. `goes_on` is the probability of another token after a wrong and after a right guess."""

    def length(outcome: int) -> int:
        tokens = 1
        while tokens < BUDGET and random.random() < goes_on[outcome]:
            tokens += 1
        return tokens

    rollouts = []
    for _ in range(GROUPS):
        outcomes = [int(random.random() < 0.5) for _ in range(GROUP)]
        rollouts.append(rollout_of(outcomes, lengths=[length(x) for x in outcomes], limit=BUDGET))
    return pack(rollouts)


def log_probs(batch: Batch, logits: Tensor) -> Tensor:
    """The log-prob of each token's decision: to go on, or to stop after the last one. A full answer never stops."""
    s = batch.sequences
    x = s.spread(logits[batch.outcome.long()])
    index = s.index
    is_last = torch.cat([index[1:] != index[:-1], torch.ones(1, dtype=torch.bool)])
    stops = is_last & s.spread(s.lengths < BUDGET)
    return logsigmoid(torch.where(stops, -x, x))
