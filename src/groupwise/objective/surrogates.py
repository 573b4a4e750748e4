"""Surrogates: the per-token quantity to maximise, such as PPO's clipped `ratio * advantage`.

`clipped` marks the tokens where a lower or an upper bound is active. A surrogate without bounds does not have it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Couples, Ratio, Surrogate, surrogate
from groupwise.objective.ratios import bounded, token_ratio

__all__ = ["Clip", "ClippedWeight", "Clips", "GammaWeight", "SoftGate", "Unclipped", "policy_gradient"]

Clipped = tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]


@runtime_checkable
class Clips(Protocol):
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
    """`sg[clip(r, floor, cap)] A log pi`: a token with a clipped weight keeps its gradient. CISPO, arXiv:2506.13585.

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
class GammaWeight(Surrogate):
    """`sg[W^k exp(decay (1 - W))] A log pi`, with W the product of a sequence's ratios. VESPO, arXiv:2602.10693.

    The weight is 1 at W = 1, is largest at W = k / decay, and falls to 0 on both sides, so nothing is clipped. `k` and
    `decay` (the paper's c1 and c2) differ by the sign of A. The value depends on `log pi`, as in `ClippedWeight`.
    """

    couples: ClassVar[Couples] = "sequence"

    k_positive: float = 2.0
    decay_positive: float = 3.0
    k_negative: float = 3.0
    decay_negative: float = 2.0

    def __post_init__(self) -> None:
        numbers = (self.k_positive, self.decay_positive, self.k_negative, self.decay_negative)
        if not all(0 < x < math.inf for x in numbers):
            raise ValueError(f"{self}: needs k and decay above 0, so that the weight falls to 0 on both sides of 1")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, a = b.sequences, b.advantage
        log_w = s.spread(bounded(s.total(bounded((b.logp - b.logp_old).detach()))))
        k = torch.where(a < 0, self.k_negative, self.k_positive)
        decay = torch.where(a < 0, self.decay_negative, self.decay_positive)
        return (k * log_w + decay * (1 - log_w.exp())).exp() * a * b.logp


@dataclass(frozen=True, slots=True)
class Unclipped(Surrogate):
    """`r A` without a clip, for a ratio that is itself bounded, such as `PowerMean` in GMPO, arXiv:2507.20673."""

    ratio: Ratio = token_ratio

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return self.ratio(b) * b.advantage

    def clipped(self, b: Batch) -> Clipped:
        if isinstance(self.ratio, Clips):
            return self.ratio.clipped(b)
        none = torch.zeros_like(b.advantage, dtype=torch.bool)
        return none, none


@dataclass(frozen=True, slots=True)
class SoftGate(Surrogate):
    """`4 / tau sigmoid(tau (r - 1)) A`, tau by the sign of A: a smooth clip. SAPO, arXiv:2511.20347.

    At r = 1 the gradient is REINFORCE's for every tau, and the value is `2 A / tau`, not A.
    """

    positive: float = 1.0
    negative: float = 1.05
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        if not (0 < self.positive < math.inf and 0 < self.negative < math.inf):
            raise ValueError(f"{self}: needs 0 < positive < inf and 0 < negative < inf")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        a = b.advantage
        tau = torch.full_like(a, self.negative).masked_fill(a > 0, self.positive)
        return 4 / tau * torch.sigmoid(tau * (self.ratio(b) - 1)) * a


@surrogate
def policy_gradient(b: Batch) -> Float[Tensor, " n"]:
    """`A log pi`: the policy gradient, without a correction for off-policy samples. Williams, 1992.

    Only the gradient is meaningful: the value changes with `log pi`.
    """
    return b.advantage * b.logp
