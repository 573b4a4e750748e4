"""Means over pairs of answers, and over the answers of groups with right and wrong ones, for contrastive losses."""

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, aggregate
from groupwise.objective.preference_surrogates import pairs

__all__ = ["pair_mean"]


@aggregate
def pair_mean(step: Batch) -> Float[Tensor, " n"]:
    """The mean over pairs of a better and a worse answer of a group. For `PairwisePreference`."""
    g, (better, _) = step.token_groups, pairs(step)
    count = torch.bincount(step.groups.index[better], minlength=step.groups.count).to(step.advantage.dtype)
    return g.spread(count / count.sum().clamp(min=1) / g.size(step.advantage).clamp(min=1))
