"""Ratios of the policy to the policy before the update, per token, with gradient."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Ratio, Segments, UnsplitUnit, ratio
from groupwise.objective.sentence_splitter import SentenceSplitter

__all__ = [
    "MAX_LOG_RATIO",
    "PowerMeanRatio",
    "SentenceRatio",
    "sequence_product",
    "sequence_ratio",
    "sequence_ratio_per_token",
    "token_ratio",
]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this before `exp`, so that one outlier token cannot overflow."""


@ratio
def token_ratio(b: Batch) -> Float[Tensor, " n"]:
    """`pi / pi_old` of each token. PPO, arXiv:1707.06347, equation 6."""
    return _exp(b.logp - b.logp_old)


@dataclass(frozen=True, slots=True)
class SequenceRatio(Ratio):
    """Geometric mean of the token ratios of a sequence, on each of its tokens. GSPO, arXiv:2507.18071, equation 7."""

    name: ClassVar[str] = "sequence_ratio"
    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences
        return s.spread(_exp(s.mean(b.logp - b.logp_old)))


@dataclass(frozen=True, slots=True)
class SequenceRatioPerToken(Ratio):
    """`sg[s] pi / sg[pi]`: the value of `sequence_ratio`, with the gradient of each token's own log-prob. GSPO-token.

    For advantages that differ within a sequence. arXiv:2507.18071, section 4.3.
    """

    name: ClassVar[str] = "sequence_ratio_per_token"
    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return sequence_ratio(b).detach() * (b.logp - b.logp.detach()).exp()


@dataclass(frozen=True, slots=True)
class SequenceProductRatio(Ratio):
    """`pi(y | x) / pi_old(y | x)`, the whole answer as one action, on each of its tokens. RLOO, arXiv:2402.14740."""

    name: ClassVar[str] = "sequence_product"
    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences
        return s.spread(_exp(s.total(b.logp - b.logp_old)))


sequence_ratio = SequenceRatio()
sequence_ratio_per_token = SequenceRatioPerToken()
sequence_product = SequenceProductRatio()


@dataclass(frozen=True, slots=True)
class SentenceRatio(Ratio):
    """Geometric mean of a sentence's token ratios on each token, with the gradient of the token's own log-prob.

    An outlier token changes its own sentence only. SSPO, arXiv:2511.04256; the form of the gradient is our reading.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"

    sentence_splitter: SentenceSplitter = SentenceSplitter()  # noqa: RUF009

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = self.sentence_splitter(b)
        return s.spread(_exp(s.mean((b.logp - b.logp_old).detach()))) * (b.logp - b.logp.detach()).exp()


@dataclass(frozen=True, slots=True)
class PowerMeanRatio(Ratio):
    """`mean(r^p)^(1/p)` over the token ratios of a sequence, each first clipped on the side that PPO clips.

    `p = 0` is the geometric mean: GMPO, arXiv:2507.20673, with `log_low = log_high = 0.4`. Both are distances from 0 in
    log space: `log r` is at most `log_high` for a positive advantage and at least `-log_low` for a negative one. The
    sign is the sequence's: advantages that vary within a sequence raise ValueError. A token's log-ratio is clamped to
    plus or minus 20 before the mean, also on the side without a bound. With `clamped_unit = "sequence"` the bounds hold
    for the sum of a sequence's log-ratios instead: the ablation of GMPO's authors.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"
    one_per_sequence: ClassVar[bool] = True

    p: float = 0.0
    log_low: float = math.inf
    log_high: float = math.inf
    clamped_unit: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        if self.clamped_unit == "sequence" and self.p != 0:
            raise ValueError(f"{self}: clamped_unit = 'sequence' needs p = 0, the geometric mean")
        if self.log_low < 0 or self.log_high < 0:
            raise ValueError(f"{self}: log_low and log_high are distances from 0 in log space and cannot be negative")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, a = b.sequences, b.advantage
        if not torch.equal(s.spread(s.largest(a)), -s.spread(s.largest(-a))):
            raise ValueError(
                "PowerMeanRatio needs one advantage per sequence; for one per token use sequence_ratio_per_token"
            )
        gap = bounded(b.logp - b.logp_old)
        if self.clamped_unit == "sequence":
            total = self._clamp(s.total(gap), s.mean(a))
            return s.spread((total / s.size(a).clamp(min=1)).exp())
        return s.spread(_log_power_mean(self._clamp(gap, a), s, self.p).exp())

    def _clamp(self, gap: Tensor, a: Tensor) -> Tensor:
        return torch.where(a < 0, gap.clamp(min=-self.log_low), gap.clamp(max=self.log_high))

    def clipped(self, b: Batch) -> tuple[Bool[Tensor, " n"], Bool[Tensor, " n"]]:
        gap, s = b.logp - b.logp_old, b.sequences
        if self.clamped_unit == "sequence":
            gap = s.spread(s.total(gap))
        return (b.advantage < 0) & (gap < -self.log_low), (b.advantage > 0) & (gap > self.log_high)


def bounded(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The log-ratio, clamped to plus or minus `MAX_LOG_RATIO`."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _exp(log_ratio: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    return bounded(log_ratio).exp()


def _log_power_mean(x: Float[Tensor, " n"], s: Segments, p: float) -> Float[Tensor, " s"]:
    """`log(mean(exp(p x))) / p` over each sequence, as a stable log-sum-exp; `mean(x)` for p = 0."""
    if p == 0:
        return s.mean(x)
    top = s.largest(p * x.detach())
    total = s.total((p * x - s.spread(top)).exp()).clamp(min=1)  # the largest term is 1; an empty segment has none
    return (top + total.log() - s.size(x).clamp(min=1).log()) / p
