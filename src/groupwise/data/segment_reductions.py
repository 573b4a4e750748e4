"""`Segments`: sums, means and other reductions over `n` elements in `count` segments."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

__all__ = ["Segments"]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """`n` elements in `count` segments. Reductions of an empty segment are 0, never NaN.

    The same type describes tokens in samples, samples in groups, groups in rollouts, and turns in samples.

    >>> s = Segments.of([2, 1])
    >>> s.total(torch.tensor([1.0, 2.0, 5.0]))
    tensor([3., 5.])
    >>> s.spread(torch.tensor([9.0, 7.0]))
    tensor([9., 9., 7.])
    """

    index: Int[Tensor, " n"]
    count: int

    @staticmethod
    def of(lengths: Sequence[int] | Int[Tensor, " s"]) -> "Segments":
        """Create consecutive segments of these lengths."""
        sizes = torch.as_tensor(lengths, dtype=torch.long)
        return Segments(torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes), len(sizes))

    @property
    def lengths(self) -> Int[Tensor, " s"]:
        """Number of elements in each segment, as integers."""
        return torch.bincount(self.index, minlength=self.count)

    @property
    def live(self) -> int:
        """Number of segments that contain an element."""
        return int((self.lengths > 0).sum())

    def size(self, like: Tensor) -> Float[Tensor, " s"]:
        """Number of elements in each segment, in the dtype of `like`."""
        return self.lengths.to(like.dtype)

    def total(self, x: Float[Tensor, " n"]) -> Float[Tensor, " s"]:
        return x.new_zeros(self.count).index_add(0, self.index, x)

    def mean(self, x: Float[Tensor, " n"]) -> Float[Tensor, " s"]:
        return self.total(x) / self.size(x).clamp(min=1)

    def spread(self, y: Shaped[Tensor, " s"]) -> Shaped[Tensor, " n"]:
        """Gives every element its segment's value."""
        return y[self.index]

    def away(self, x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """`x - mean(segment)`; exactly 0 in a segment of one element or of equal values."""
        return torch.where(self.spread(self._flat(x)), 0.0, x - self.spread(self.mean(x)))

    def zscore(self, x: Float[Tensor, " n"], *, ddof: int, eps: float) -> Float[Tensor, " n"]:
        """`(x - mean) / (std + eps)` in each segment; exactly 0 in a segment of one element or of equal values."""
        away = self.away(x)
        variance = self.total(away**2) / (self.size(x) - ddof).clamp(min=1)
        divisor = self.spread(variance.sqrt()) + eps
        return away / divisor.masked_fill(divisor == 0, 1.0)  # 0 only if eps is 0

    def largest(self, x: Float[Tensor, " n"]) -> Float[Tensor, " s"]:
        return x.new_zeros(self.count).scatter_reduce(0, self.index, x, "amax", include_self=False)

    def prefix(self, x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Inclusive running sum in each segment, in the order of the elements.

        The sum is in float64. A float32 running sum over two million tokens has an error of 3e-3, and its rounding
        depends on the other segments.

        >>> Segments.of([2, 2]).prefix(torch.tensor([1.0, 2.0, 10.0, 1.0]))
        tensor([ 1.,  3., 10., 11.])
        """
        order = torch.argsort(self.index, stable=True)
        run = x[order].double().cumsum(0)
        before = torch.cat([run.new_zeros(1), run])[self.lengths.cumsum(0) - self.lengths]
        return torch.empty_like(run).index_copy(0, order, run - before[self.index[order]]).to(x.dtype)

    def then(self, outer: "Segments") -> "Segments":
        """Compose two segmentations: tokens in samples, and samples in groups, give tokens in groups."""
        return Segments(outer.index[self.index], outer.count)

    def keep(self, which: Bool[Tensor, " n"]) -> "Segments":
        """Drop the elements where `which` is False. The number of segments stays; a segment may become empty."""
        return Segments(self.index[which], self.count)

    def _flat(self, x: Float[Tensor, " n"]) -> Bool[Tensor, " s"]:
        """For each segment, whether all its elements are equal."""
        return self.largest(x) + self.largest(-x) == 0
