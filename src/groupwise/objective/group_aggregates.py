"""Aggregates of contrasts: every pair of answers, or every answer of a mixed group, has the same weight."""

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch
from groupwise.objective.contrasts import labels, pairs

SOCKET = "Aggregate"
__all__ = ["mixed_mean", "pair_mean"]


def pair_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every pair of a better and a worse answer of a group weighs the same in the step. For `Preference`."""
    g, (better, _) = step.token_groups, pairs(step)
    count = torch.bincount(step.groups.index[better], minlength=step.groups.count).to(step.advantage.dtype)
    return g.spread(count / count.sum().clamp(min=1) / g.size(step.advantage).clamp(min=1))


def mixed_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every answer of a group with correct and wrong answers weighs the same. For `BinaryLabels`."""
    s, mixed = step.sequences, (labels(step) != 0).to(step.advantage.dtype)
    return s.spread(mixed / mixed.sum().clamp(min=1) / s.size(step.advantage).clamp(min=1))
