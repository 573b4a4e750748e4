"""Shaping by length: rewards that prefer short answers, or answers near a given length."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Measure, Outcome, Shaping, VerdictPart

__all__ = ["BrevityWhenSolved", "FormatLength"]


@dataclass(frozen=True, slots=True)
class BrevityWhenSolved(Shaping):
    """In groups with the best pass rates, long correct answers lose more reward: `reward (1 - alpha sigmoid(z))`.

    z is the length relative to the group's correct answers, in standard deviations. `share` is the fraction of groups.
    Ties go to the group that was drawn first. GRPO-lambda, arXiv:2505.18086; the sigmoid is our reading.
    """

    share: float = 0.2
    alpha: float = 0.2
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and 0 <= self.alpha < 1):
            raise ValueError(f"{self}: needs 0 <= share <= 1 and 0 <= alpha < 1, to keep rewards above 0")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        correct = b.outcome == Outcome.correct
        length = b.length.to(reward.dtype)
        z = torch.zeros_like(length)
        z[correct] = b.groups.keep(correct).zscore(length[correct], ddof=1, eps=self.eps)
        shorter = reward * (1 - self.alpha * z.sigmoid())
        return torch.where(b.groups.spread(self._best(b, correct)) & correct, shorter, reward)

    def _best(self, b: Batch, correct: Bool[Tensor, " s"]) -> Bool[Tensor, " g"]:
        """For each group, whether its pass rate is among the best."""
        rate = b.groups.mean(correct.double())
        order = rate.argsort(descending=True, stable=True)
        best = torch.zeros_like(rate, dtype=torch.bool)
        best[order[: math.ceil(self.share * b.groups.count)]] = True
        return best


@dataclass(frozen=True, slots=True)
class FormatLength(Shaping):
    """Creates the reward from format and length alone: `(think + answer) / 2 + curve`; if malformed, `min(curve, 0)`.

    No label is read: `answer` is 1 unless the verdict is malformed, and `think` is a part of the verdict that is 1 if
    a thought was found; without a name for it, it equals `answer`. The curve of `length / budget` rises from 0 to 1 at
    `peak` and falls to -1 at the budget. arXiv:2505.19439.
    """

    peak: float = 0.5
    think: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.peak < 1:
            raise ValueError(f"{self}: needs 0 < peak < 1: the peak is a share of the budget")

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.think)}) if self.think else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        answer = (b.outcome != Outcome.malformed).double()
        think = b[VerdictPart(self.think)] if self.think else answer
        x = b.length.double() / max(b.max_tokens, 1)
        rising, falling = 1 - (1 - x / self.peak) ** 2, 1 - 2 * ((x - self.peak) / (1 - self.peak)) ** 2
        curve = torch.where(x <= self.peak, rising, falling)
        return torch.where(answer > 0, 0.5 * (think + answer) + curve, curve.clamp(max=0))
