"""Advantage estimators: each sample's reward relative to its group, or to all samples of the iteration.

Statistics are over the samples in the batch; samples excluded as unverifiable have already been removed.
`group_relative` marks an advantage that is always 0 in groups of one sample.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Segments

__all__ = ["Bounded", "Standardised", "Whitened", "centred"]


@dataclass(frozen=True, slots=True)
class Standardised(Advantage):
    """`(x - mean(group)) / (std(group) + eps)`; 0 in a group of equal rewards. GRPO, arXiv:2402.03300, section 4.1.2.

    The paper does not define its std; `ddof = 1` is what released codes use.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0, 0.0, 0.0]), rollout_of([1.0, 1.0])])
    >>> [round(a, 3) for a in Standardised()(batch.verdict_score, batch).tolist()]
    [1.5, -0.5, -0.5, -0.5, 0.0, 0.0]
    """

    group_relative: ClassVar[bool] = True

    ddof: int = 1
    eps: float = 1e-6

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return b.groups.zscore(x, ddof=self.ddof, eps=self.eps)


@dataclass(frozen=True, slots=True)
class Centred(Advantage):
    """`x - mean(group)`; 0 for a single sample. Dr. GRPO, arXiv:2503.20783."""

    name: ClassVar[str] = "centred"
    group_relative: ClassVar[bool] = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return b.groups.away(x)


centred = Centred()


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
class Bounded(Advantage):
    """`clip(x, -max_abs, max_abs)`, after another advantage: outliers do not dominate. arXiv:2509.25849.

    >>> from groupwise.data import rollout_of, pack
    >>> Bounded(5.0)(torch.tensor([-0.5, 7.0]), pack([rollout_of([0.0, 1.0])])).tolist()
    [-0.5, 5.0]
    """

    max_abs: float = 5.0

    def __post_init__(self) -> None:
        if self.max_abs <= 0:
            raise ValueError(f"{self}: needs max_abs > 0")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return x.clamp(-self.max_abs, self.max_abs)
