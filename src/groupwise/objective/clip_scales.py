"""Scales: factors per token, without gradient, for the width of a clip range or for a mix of two ratios."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Entropy, NeededMeasure, UnsplitUnit, component_of
from groupwise.objective.sentence_splitter import SentenceSplitter

__all__ = ["ClipScale", "MaxNormalisedEntropyScale", "SentenceEntropyClipScale", "unscaled"]

_ENTROPY: frozenset[NeededMeasure] = frozenset({Entropy()})


@runtime_checkable
class ClipScale(Protocol):
    """A function that returns a factor for each token, without gradient, such as for the width of a clip range."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, microbatch: Batch, /) -> Float[Tensor, " n"]: ...


@component_of(ClipScale)
def unscaled(b: Batch) -> Float[Tensor, " n"]:
    """The scale 1 for each token: no scaling."""
    return torch.ones_like(b.advantage)


@dataclass(frozen=True, slots=True)
class SentenceEntropyClipScale(ClipScale):
    """Scales the clip range by the mean entropy of a token's sentence over its answer's, within bounds.

    SSPO, arXiv:2511.04256. The paper says that uncertain sentences get a wider range; the formula is our reading.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    needs: ClassVar[frozenset[NeededMeasure]] = _ENTROPY

    min_scale: float = 0.5
    max_scale: float = 1.5
    sentence_splitter: SentenceSplitter = SentenceSplitter()  # noqa: RUF009

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, h = self.sentence_splitter(b), b[Entropy()]
        here, mean = s.spread(s.mean(h)), b.sequences.spread(b.sequences.mean(h))
        return torch.where(mean > 0, here / mean.masked_fill(mean <= 0, 1.0), 1.0).clamp(self.min_scale, self.max_scale)


@dataclass(frozen=True, slots=True)
class MaxNormalisedEntropyScale(ClipScale):
    """A token's entropy, divided by the largest entropy in its answer. DHPO, arXiv:2601.05607; our reading."""

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    needs: ClassVar[frozenset[NeededMeasure]] = _ENTROPY

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        h = b[Entropy()]
        largest = b.sequences.spread(b.sequences.largest(h))
        return torch.where(largest > 0, h / largest.masked_fill(largest <= 0, 1.0), 0.0)
