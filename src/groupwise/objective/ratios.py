"""How far the policy has moved from the one whose answers it learns from, token by token, in the graph."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Couples, Segments

SOCKET = "Ratio"
__all__ = [
    "MAX_LOG_RATIO",
    "PowerMean",
    "sequence_product",
    "sequence_ratio",
    "sequence_ratio_per_token",
    "token_ratio",
]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this before `exp`: an overflow would end a run that one odd token began."""


def token_ratio(b: Batch) -> Float[Tensor, " n"]:
    """`pi / pi_old` of each token. PPO, arXiv:1707.06347, equation 6."""
    return _exp(b.logp - b.logp_old)


@dataclass(frozen=True, slots=True)
class SequenceRatio:
    """Geometric mean of the token ratios of a sequence, on each of its tokens. GSPO, arXiv:2507.18071, equation 7."""

    name: ClassVar[str] = "sequence_ratio"
    couples: ClassVar[Couples] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences
        return s.spread(_exp(s.mean(b.logp - b.logp_old)))


@dataclass(frozen=True, slots=True)
class SequenceRatioPerToken:
    """The value of `sequence_ratio`, the gradient through each token alone: `sg[s] pi / sg[pi]`. GSPO-token.

    For advantages that differ within a sequence. arXiv:2507.18071, section 4.3.
    """

    name: ClassVar[str] = "sequence_ratio_per_token"
    couples: ClassVar[Couples] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return sequence_ratio(b).detach() * (b.logp - b.logp.detach()).exp()


@dataclass(frozen=True, slots=True)
class SequenceProduct:
    """`pi(y | x) / pi_old(y | x)`, the whole answer as one action, on each of its tokens. RLOO, arXiv:2402.14740."""

    name: ClassVar[str] = "sequence_product"
    couples: ClassVar[Couples] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences
        return s.spread(_exp(s.total(b.logp - b.logp_old)))


sequence_ratio = SequenceRatio()
sequence_ratio_per_token = SequenceRatioPerToken()
sequence_product = SequenceProduct()


@dataclass(frozen=True, slots=True)
class PowerMean:
    """`mean(r^p)^(1/p)` over the token ratios of a sequence, each clipped before the mean on the side that PPO clips.

    `p = 0` is the geometric mean: GMPO, arXiv:2507.20673, whose window is `log_low = log_high = 0.4`. Both are
    distances from 0 in log space: a positive advantage stops `log r` at `log_high`, a negative one at `-log_low`. The
    sign is the sequence's, so advantages that vary within a sequence are refused with ValueError. A token's
    log-ratio is clamped to plus or minus 20 before the mean, also on the side that the window leaves open.
    """

    couples: ClassVar[Couples] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    p: float = 0.0
    log_low: float = math.inf
    log_high: float = math.inf

    def __post_init__(self) -> None:
        if self.log_low < 0 or self.log_high < 0:
            raise ValueError(f"{self}: log_low and log_high are distances from 0 in log space, so neither is negative")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, a = b.sequences, b.advantage
        if not torch.equal(s.spread(s.largest(a)), -s.spread(s.largest(-a))):
            raise ValueError("PowerMean needs one advantage a sequence; for one a token use sequence_ratio_per_token")
        gap = bounded(b.logp - b.logp_old)
        near = torch.where(a < 0, gap.clamp(min=-self.log_low), gap.clamp(max=self.log_high))
        return s.spread(_log_power_mean(near, s, self.p).exp())

    def clipped(self, b: Batch) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
        gap = b.logp - b.logp_old
        return (b.advantage < 0) & (gap < -self.log_low), (b.advantage > 0) & (gap > self.log_high)


def bounded(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log-ratio within plus or minus `MAX_LOG_RATIO`."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _exp(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return bounded(log_ratio).exp()


def _log_power_mean(x: Float[Tensor, " n"], s: Segments, p: float) -> Float[Tensor, " s"]:
    """`log(mean(exp(p x))) / p` of each segment with its largest term taken out first; `mean(x)` for p = 0."""
    if p == 0:
        return s.mean(x)
    top = s.largest(p * x.detach())
    total = s.total((p * x - s.spread(top)).exp()).clamp(min=1)  # the largest term is 1; an empty segment holds none
    return (top + total.log() - s.size(x).clamp(min=1).log()) / p
