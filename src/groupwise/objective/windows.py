"""Variants of PPO's clip: a cap, a range scaled per token, a mix of two ratios, a range that grows with position."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Ratio, Surrogate
from groupwise.objective.ratios import prefix_ratio, sequence_ratio_per_token, token_ratio
from groupwise.objective.scales import Scale, unscaled
from groupwise.objective.surrogates import Clip, Clipped

__all__ = ["DualClip", "LogClip", "MixedClip", "ScaledClip"]

SMALLEST = 1e-3
"""The smallest lower bound of a scaled clip range: ratios are positive, so it must stay above 0."""


@dataclass(frozen=True, slots=True)
class DualClip(Surrogate):
    """PPO's clip, and at least `cap A` for A < 0: there a huge ratio gives no gradient. Dual-clip, arXiv:1912.09729."""

    low: float = 0.2
    high: float = 0.2
    cap: float = 3.0
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        if self.cap <= 1:
            raise ValueError(f"{self}: needs cap > 1, or tokens with a ratio of 1 are clipped")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        gain, a = Clip(self.low, self.high, self.ratio)(b), b.advantage
        return torch.where(a < 0, torch.maximum(gain, self.cap * a), gain)

    def clipped(self, b: Batch) -> Clipped:
        low, high = Clip(self.low, self.high, self.ratio).clipped(b)
        return low, high | ((b.advantage < 0) & (self.ratio(b) > self.cap))


@dataclass(frozen=True, slots=True)
class ScaledClip(Surrogate):
    """PPO's clip from `1 - scale * low` to `1 + scale * high`; `scale` is a factor per token, without gradient."""

    low: float = 0.2
    high: float = 0.2
    scale: Scale = unscaled
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
        scale = self.scale(b).detach()
        return (1 - scale * self.low).clamp(min=SMALLEST), 1 + scale * self.high


@dataclass(frozen=True, slots=True)
class MixedClip(Surrogate):
    """PPO's clip with a mix of the token ratio r and the sequence ratio s: `w clip(r) + (1 - w) clip(s)`.

    `joint` takes the minimum of the mixes, `min(m A, m^ A)`; `separate` mixes the two minima. They differ where one
    ratio is above its range and the other below. `mix` is w, a number or a `Scale`. DHPO, arXiv:2601.05607; that the
    minimum is joint is our reading.
    """

    token: Clip = Clip()  # noqa: RUF009
    sequence: Clip = Clip(3e-4, 4e-4, sequence_ratio_per_token)  # noqa: RUF009
    mix: float | Scale = 0.5
    form: Literal["joint", "separate"] = "joint"

    def __post_init__(self) -> None:
        if isinstance(self.mix, float | int) and not 0 <= self.mix <= 1:
            raise ValueError(f"{self}: needs 0 <= mix <= 1")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        w = self.mix if isinstance(self.mix, float | int) else self.mix(b).detach()
        if self.form == "separate":
            return w * self.token(b) + (1 - w) * self.sequence(b)
        r, s = self.token.ratio(b), self.sequence.ratio(b)
        near = w * _near(r, self.token) + (1 - w) * _near(s, self.sequence)
        return torch.minimum((w * r + (1 - w) * s) * b.advantage, near * b.advantage)

    def clipped(self, b: Batch) -> Clipped:
        """The tokens without a gradient: all ratios in the mix are outside their ranges, and the minimum is clipped."""
        w = self.mix if isinstance(self.mix, float | int) else self.mix(b).detach()
        if self.form == "separate":
            (low, high), (sequence_low, sequence_high) = self.token.clipped(b), self.sequence.clipped(b)
            no_token, no_sequence = w == 0, w == 1
            return (low | no_token) & (sequence_low | no_sequence), (high | no_token) & (sequence_high | no_sequence)
        r, s, a = self.token.ratio(b), self.sequence.ratio(b), b.advantage
        near_r, near_s = _near(r, self.token), _near(s, self.sequence)
        change = w * (near_r - r) + (1 - w) * (near_s - s)
        outside = ((near_r != r) | (w == 0)) & ((near_s != s) | (w == 1))
        return outside & (a < 0) & (change > 0), outside & (a > 0) & (change < 0)


@dataclass(frozen=True, slots=True)
class LogClip(Surrogate):
    """PPO's clip of the log-ratio, in a range that grows with `position ** power`; for A < 0 also an upper bound.

    `position` counts the trained tokens of an answer from 1. CTPO, arXiv:2605.07331.
    """

    low: float = 0.025
    high: float = 0.05
    cap: float = 0.05
    power: float = 0.5
    ratio: Ratio = prefix_ratio

    def __post_init__(self) -> None:
        if min(self.low, self.high, self.cap) < 0:
            raise ValueError(f"{self}: low, high and cap are distances from 0 in log space and cannot be negative")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        r, a, width = self.ratio(b), b.advantage, self._width(b)
        near = r.log().maximum(-self.low * width).minimum(self.high * width).exp()
        gain = torch.minimum(r * a, near * a)
        return torch.where(a < 0, torch.maximum(gain, (self.cap * width).exp() * a), gain)

    def clipped(self, b: Batch) -> Clipped:
        gap, a, width = self.ratio(b).log(), b.advantage, self._width(b)
        above = torch.where(a < 0, gap > self.cap * width, gap > self.high * width)
        return (a < 0) & (gap < -self.low * width), (a != 0) & above

    def _width(self, b: Batch) -> Float[Tensor, " n"]:
        return b.sequences.prefix(torch.ones_like(b.advantage)) ** self.power


def _near(ratio: Tensor, clip: Clip) -> Tensor:
    return ratio.clamp(1 - clip.low, 1 + clip.high)
