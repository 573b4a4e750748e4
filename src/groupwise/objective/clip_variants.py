"""Variants of PPO's clip: a cap, a range scaled per token, a mix of two ratios, a range that grows with position."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Ratio, Surrogate
from groupwise.objective.clip_scales import ClipScale, unscaled
from groupwise.objective.ratios import token_ratio
from groupwise.objective.surrogates import Clip, Clipped

__all__ = ["DualClip", "ScaledClip"]

SMALLEST = 1e-3
"""The smallest lower bound of a scaled clip range: ratios are positive, so it must stay above 0."""


@dataclass(frozen=True, slots=True)
class DualClip(Surrogate):
    """PPO's clip, and at least `negative_advantage_cap A` for A < 0: there a huge ratio gives no gradient.

    Dual-clip, arXiv:1912.09729.
    """

    low: float = 0.2
    high: float = 0.2
    negative_advantage_cap: float = 3.0
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        if self.negative_advantage_cap <= 1:
            raise ValueError(f"{self}: needs negative_advantage_cap > 1, or tokens with a ratio of 1 are clipped")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        gain, a = Clip(self.low, self.high, self.ratio)(b), b.advantage
        return torch.where(a < 0, torch.maximum(gain, self.negative_advantage_cap * a), gain)

    def clipped(self, b: Batch) -> Clipped:
        low, high = Clip(self.low, self.high, self.ratio).clipped(b)
        return low, high | ((b.advantage < 0) & (self.ratio(b) > self.negative_advantage_cap))


@dataclass(frozen=True, slots=True)
class ScaledClip(Surrogate):
    """PPO's clip from `1 - s low` to `1 + s high`; s is the `range_scale` of a token, a factor without gradient."""

    low: float = 0.2
    high: float = 0.2
    range_scale: ClipScale = unscaled
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        Clip(self.low, self.high)

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        r, a = self.ratio(b), b.advantage
        floor, cap = self._range(b)
        return torch.minimum(r * a, r.maximum(floor).minimum(cap) * a)

    def clipped(self, b: Batch) -> Clipped:
        r, (floor, cap) = self.ratio(b), self._range(b)
        return (b.advantage < 0) & (r < floor), (b.advantage > 0) & (r > cap)

    def _range(self, b: Batch) -> tuple[Tensor, Tensor]:
        scale = self.range_scale(b).detach()
        return (1 - scale * self.low).clamp(min=SMALLEST), 1 + scale * self.high
