"""Advantage estimators: each sample's reward relative to its group, or to all samples of the iteration.

Statistics are over the samples in the batch; samples excluded as unverifiable have already been removed. `compares`
marks an advantage that is always 0 in groups of one sample.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Outcome, Segments

__all__ = ["Bounded", "OddsAdvantage", "Standardised", "VirtualBest", "Whitened", "centred", "leave_one_out"]


@dataclass(frozen=True, slots=True)
class Standardised(Advantage):
    """`(x - mean(group)) / (std(group) + eps)`; 0 in a group of equal rewards. GRPO, arXiv:2402.03300, section 4.1.2.

    The paper does not define its std; `ddof = 1` is what released codes use.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0, 0.0, 0.0]), rollout_of([1.0, 1.0])])
    >>> [round(a, 3) for a in Standardised()(batch.score, batch).tolist()]
    [1.5, -0.5, -0.5, -0.5, 0.0, 0.0]
    """

    compares: ClassVar[bool] = True

    ddof: int = 1
    eps: float = 1e-6

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return b.groups.zscore(x, ddof=self.ddof, eps=self.eps)


@dataclass(frozen=True, slots=True)
class Centred(Advantage):
    """`x - mean(group)`; 0 for a single sample. Dr. GRPO, arXiv:2503.20783."""

    name: ClassVar[str] = "centred"
    compares: ClassVar[bool] = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return b.groups.away(x)


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Advantage):
    """`x - mean(the others in the group)`; 0 for a single sample. RLOO, arXiv:2402.14740, equation 8."""

    name: ClassVar[str] = "leave_one_out"
    compares: ClassVar[bool] = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        size = b.groups.size(x)
        return b.groups.away(x) * b.groups.spread(size / (size - 1).clamp(min=1))


centred = Centred()
leave_one_out = LeaveOneOut()


@dataclass(frozen=True, slots=True)
class Whitened(Advantage):
    """`(x - mean) / (std + eps)` over all samples of the iteration, across groups; 0 for equal values.

    Batch standardisation of rewards, or of advantages after a group baseline: REINFORCE++, arXiv:2501.03262, per
    sample.
    """

    ddof: int = 1
    eps: float = 1e-8

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return Segments(torch.zeros_like(b.groups.index), 1).zscore(x, ddof=self.ddof, eps=self.eps)


@dataclass(frozen=True, slots=True)
class VirtualBest(Advantage):
    """Group z-scores, as if the group had `count` more answers with the reward `best`. NGRPO, arXiv:2509.18851.

    A group of wrong answers has negative advantages; a group of correct ones has 0.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([0.0] * 8)])
    >>> round(VirtualBest()(batch.score, batch)[0].item(), 4)
    -0.3333
    """

    best: float = 1.0
    count: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self}: needs count >= 1; for no virtual answers use Standardised")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g = b.groups
        size = g.size(x) + self.count
        mean = (g.total(x) + self.count * self.best) / size
        away = x - g.spread(mean)
        variance = (g.total(away**2) + self.count * (self.best - mean) ** 2) / (size - 1).clamp(min=1)
        return away / (g.spread(variance.sqrt()) + self.eps)


@dataclass(frozen=True, slots=True)
class OddsAdvantage(Advantage):
    """`((1 - p) / p)^right` for a correct answer, `-(p / (1 - p))^wrong` for another, p the pass rate of the group.

    0 where all answers are correct or none is. With both exponents 1/2 it is GRPO's z-score with ddof 0. `most` bounds
    it. AsymGRPO, arXiv:2604.04894; that exponents separate the two classes is our reading.
    """

    compares: ClassVar[bool] = True

    right: float = 0.75
    wrong: float = 0.5
    most: float = 10.0

    def __post_init__(self) -> None:
        if self.right < 0 or self.wrong < 0 or self.most <= 0:
            raise ValueError(f"{self}: needs right >= 0, wrong >= 0 and most > 0")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        correct = b.outcome == Outcome.correct
        p = b.groups.spread(b.groups.mean(correct.to(x.dtype)))
        mixed = (p > 0) & (p < 1)
        odds = torch.where(mixed, (1 - p) / p.masked_fill(~mixed, 1.0), 1.0)
        a = torch.where(correct, odds**self.right, -(odds**-self.wrong)).clamp(-self.most, self.most)
        return torch.where(mixed, a, 0.0)


@dataclass(frozen=True, slots=True)
class Bounded(Advantage):
    """`clip(x, -most, most)`, after another advantage: an outlier of a large group cannot dominate. arXiv:2509.25849.

    >>> from groupwise.data import rollout_of, pack
    >>> Bounded(5.0)(torch.tensor([-0.5, 7.0]), pack([rollout_of([0.0, 1.0])])).tolist()
    [-0.5, 5.0]
    """

    most: float = 5.0

    def __post_init__(self) -> None:
        if self.most <= 0:
            raise ValueError(f"{self}: needs most > 0")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return x.clamp(-self.most, self.most)
