"""Contrasts: surrogates that compare whole answers of a group, such as a DPO loss over its pairs of answers."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, CouplingUnit, Logp, Measure, Segments, Surrogate

__all__ = ["Preference"]


@dataclass(frozen=True, slots=True)
class Preference(Surrogate):
    """DPO over a group's pairs: mean `log sigmoid(beta (d_better - d_worse))`, d the log-ratio to the reference.

    The better answer of a pair has the larger reward. d is a mean over tokens or a sum. Where the better answer has the
    reward `best_reward`, beta is multiplied by `best_beta_factor`. TRPA, arXiv:2504.04524. With `best_beta_factor = 1`
    and `token_reduction = "sum"` it is DPO, arXiv:2305.18290. For the aggregate `pair_mean`.
    """

    coupling_unit: ClassVar[CouplingUnit] = "group"

    beta: float = 0.1
    best_beta_factor: float = 1.0
    best_reward: float = 1.0
    token_reduction: Literal["mean", "sum"] = "sum"
    model: str = "reference"

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Logp(self.model)})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        gap = b.logp - b[Logp(self.model)]
        d = b.sequences.mean(gap) if self.token_reduction == "mean" else b.sequences.total(gap)
        better, worse = pairs(b)
        k = torch.where(b.reward[better] == self.best_reward, self.best_beta_factor, 1.0).to(d.dtype)
        gain = logsigmoid(k * self.beta * (d[better] - d[worse]))
        return b.token_groups.spread(Segments(b.groups.index[better], b.groups.count).mean(gain).to(b.logp.dtype))


def pairs(b: Batch) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """All pairs (better, worse) of a group's answers with different rewards, among those with trained tokens."""
    r, g, live = b.reward, b.groups.index, b.sequences.lengths > 0
    both = (g[:, None] == g) & (r[:, None] > r) & live[:, None] & live
    better, worse = both.nonzero(as_tuple=True)
    return better, worse
