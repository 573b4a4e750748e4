"""Surrogates: the per-token quantity to maximise, such as PPO's clipped `ratio * advantage`.

`clipped` marks the tokens where a lower or an upper bound is active. A surrogate without bounds does not have it.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Ratio, Surrogate, surrogate
from groupwise.objective.ratios import token_ratio

__all__ = ["Clip", "ClippedWeight", "ReportsClipping", "UnclippedSurrogate", "policy_gradient"]

Clipped = tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]


@runtime_checkable
class ReportsClipping(Protocol):
    """A surrogate or ratio that clips. `clipped` returns which tokens are clipped at the lower and the upper bound."""

    def clipped(self, b: Batch) -> Clipped: ...


@dataclass(frozen=True, slots=True)
class Clip(Surrogate):
    """`min(r A, clip(r, 1 - low, 1 + high) A)`; the bounds are distances from 1. PPO, arXiv:1707.06347, equation 7.

    A clipped token has no gradient: above `1 + high` for A > 0, below `1 - low` for A < 0. A ratio equal to its bound
    is not clipped.
    """

    low: float = 0.2
    high: float = 0.2
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        if self.low < 0 or self.high < 0:
            raise ValueError(f"{self}: low and high are distances from 1 and cannot be negative")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        r, a = self.ratio(b), b.advantage
        near = r.clamp(1 - self.low, 1 + self.high)
        return torch.minimum(r * a, near * a)

    def clipped(self, b: Batch) -> Clipped:
        r, a = self.ratio(b), b.advantage
        return (a < 0) & (r < 1 - self.low), (a > 0) & (r > 1 + self.high)


@dataclass(frozen=True, slots=True)
class ClippedWeight(Surrogate):
    """CISPO: a clipped, constant importance weight times `A log pi`, so that clipped tokens keep their gradient.

    The bounds are absolute: a relative `high` is `cap = 1 + high`, and the paper uses no floor. The value depends on
    `log pi`, so it is not comparable with other methods' values. Watch the share of tokens with a clipped weight.
    """

    floor: float = 0.0
    cap: float = 5.0
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1 <= self.cap:
            raise ValueError(f"{self}: needs 0 <= floor <= 1 <= cap, as bounds on the ratio itself")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return self.ratio(b).detach().clamp(self.floor, self.cap) * b.advantage * b.logp

    def clipped(self, b: Batch) -> Clipped:
        r = self.ratio(b)
        return r < self.floor, r > self.cap


@dataclass(frozen=True, slots=True)
class UnclippedSurrogate(Surrogate):
    """The unclipped policy-gradient surrogate `r A`, for a ratio that is itself bounded, such as GMPO's."""

    ratio: Ratio = token_ratio

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return self.ratio(b) * b.advantage

    def clipped(self, b: Batch) -> Clipped:
        if isinstance(self.ratio, ReportsClipping):
            return self.ratio.clipped(b)
        none = torch.zeros_like(b.advantage, dtype=torch.bool)
        return none, none


@surrogate
def policy_gradient(b: Batch) -> Float[Tensor, " n"]:
    """`A log pi`: the policy gradient, without a correction for off-policy samples. Williams, 1992.

    Only the gradient is meaningful: the value changes with `log pi`.
    """
    return b.advantage * b.logp
