"""F0, the specifications' common fixture, and batches from written ratios."""

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.data import Batch, pack, rollout_of
from groupwise.objective import Objective

R = [1.5, 0.9, 1.0, 0.5, 1.1]
LOGP = [-0.5, -1.0, -0.2, -1.2, -0.3]


def f64(x: Sequence[float]) -> Tensor:
    return torch.tensor(list(x), dtype=torch.float64)


def rows(
    ratios: Sequence[float],
    advantages: Sequence[float],
    lengths: Sequence[int],
    *,
    logp: Sequence[float] | None = None,
    limit: int = 16,
) -> Batch:
    """One group of answers; `advantages` has one number per token."""
    new = f64(logp or [-0.7] * len(ratios)).requires_grad_()
    batch = pack([rollout_of([0.0] * len(lengths), lengths=lengths, limit=limit)])
    return batch.having(logp=new, logp_old=new.detach() - f64(ratios).log(), advantage=f64(advantages))


def f0(limit: int = 4) -> Batch:
    """The specifications' common fixture: two answers of lengths 3 and 2 with advantages +1 and -1."""
    return rows(R, [1, 1, 1, -1, -1], [3, 2], logp=LOGP, limit=limit)


def j_and_slope(objective: Objective, step: Batch) -> tuple[float, list[float]]:
    j = -objective(objective.prepare(step))
    return j.item(), torch.autograd.grad(j, step.logp)[0].tolist()
