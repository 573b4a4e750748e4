"""Advantages of bundles of prompts (RiskPO). The score of a bundle is a sum of rewards, one answer per prompt."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Outcome, Segments

__all__ = ["BundleRisk"]

LEVELS = tuple(k / 20 for k in range(1, 20))
"""The quantiles of bundle scores that are tracked over a run: 0.05, 0.10, ... 0.95."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Bundles of prompts, and their draws: the j-th draw of a bundle has the j-th answer to each of its prompts."""

    of: Segments
    """The draw (the j-th answers to a bundle's prompts) of each sample."""
    bundles: Segments
    """The bundle of prompts of each draw."""
    whole: Bool[Tensor, " s"]
    """For each sample, whether its draw is complete: it has an answer to every prompt of the bundle."""

    @property
    def live(self) -> Bool[Tensor, " d"]:
        return self.of.total(self.whole.double()) > 0

    def scores(self, x: Float[Tensor, " s"]) -> Float[Tensor, " d"]:
        """The score of each draw: the sum of its answers' rewards, one answer per prompt of a bundle."""
        return self.of.total(torch.where(self.whole, x, 0.0))


def draws_of(b: Batch, size: int) -> Draws:
    """Bundles of `size` consecutive groups. Each has as many complete draws as its smallest group has samples."""
    g = b.groups
    draw = (g.prefix(torch.ones_like(b.score)) - 1).long()
    bundle = torch.arange(g.count, device=draw.device) // size
    count, most = -(-g.count // size), int(g.lengths.max()) if g.count else 0
    smallest = torch.full((count,), most, device=draw.device).scatter_reduce(0, bundle, g.lengths, "amin")
    of = g.spread(bundle)
    bundles = torch.arange(count, device=draw.device).repeat_interleave(most)
    return Draws(Segments(of * most + draw, count * most), Segments(bundles, count), draw < smallest[of])


@dataclass(frozen=True, slots=True)
class BundleRisk(Advantage):
    """A tail-weighted advantage of each bundle's score, passed to the answers of a draw. RiskPO, arXiv:2510.00911.

    Scores below the quantile `low` weigh `mix` times, scores above the quantile `high` not at all, so hard prompts
    matter most. `natural` shifts it to be at most 0. The quantiles come from the memory `Quantiles`, and in the first
    iteration from the bundle. An answer of a draw gets the draw's advantage (`split = "uniform"`), this times 0.5
    if correct, else 1.5 (`score`), this over its prompt's std (`std`), or a part of it, in proportion to how far the
    answer is above its prompt's mean (`sum-mean`).
    """

    size: int = 5
    low: float = 0.2
    high: float = 0.8
    mix: float = 1.5
    natural: bool = False
    split: Literal["uniform", "score", "std", "sum-mean"] = "sum-mean"
    memory: str = "quantiles"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not (self.size >= 1 and 0 < self.low < self.high < 1):
            raise ValueError(f"{self}: needs size >= 1 and 0 < low < high < 1")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        draws = draws_of(b, self.size)
        score, live = draws.scores(x), draws.live
        low, high = (self._quantile(level, score, draws, b) for level in (self.low, self.high))
        a = self.risk(score, low, high) / (draws.bundles.spread(self._std(score, draws)) + self.eps)
        a = torch.where(live, a, 0.0)
        return torch.where(draws.whole, self._split(draws.of.spread(a), x, b, draws), 0.0)

    def risk(self, score: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The advantage of each bundle score, given a lower and an upper quantile of bundle scores."""
        middle = (score - low).relu() - (score - high).relu() + (low - high if self.natural else 0.0)
        tail = -(low - score).relu() / (self.low + self.eps)
        return (self.mix * tail + middle / (self.high - self.low + self.eps)) / (self.mix + 1)

    def _quantile(self, level: float, score: Tensor, draws: Draws, b: Batch) -> Float[Tensor, " d"]:
        if tracked := b.memory.get(self.memory):
            return torch.full_like(score, tracked[min(range(len(LEVELS)), key=lambda i: abs(LEVELS[i] - level))])
        own = torch.zeros_like(score)
        for k in range(draws.bundles.count):
            here = draws.live & (draws.bundles.index == k)
            if bool(here.any()):
                own[here] = score[here].quantile(level)
        return own

    def _std(self, score: Tensor, draws: Draws) -> Float[Tensor, " b"]:
        """The standard deviation of each bundle's scores; 1 for a single score or for equal ones."""
        of = draws.bundles.keep(draws.live)
        variance = of.total(of.away(score[draws.live]) ** 2) / (of.size(score) - 1).clamp(min=1)
        return variance.sqrt().masked_fill(variance == 0, 1.0)

    def _split(self, a: Tensor, x: Tensor, b: Batch, draws: Draws) -> Float[Tensor, " s"]:
        g = b.groups
        match self.split:
            case "uniform":
                return a
            case "score":
                return torch.where(b.outcome == Outcome.correct, 0.5, 1.5) * a
            case "std":
                std = (g.total(g.away(x) ** 2) / (g.size(x) - 1).clamp(min=1)).sqrt()
                return a / (g.spread(std.masked_fill(std <= 1e-3, 1.0)) + self.eps)
            case "sum-mean":
                above = torch.where(draws.whole, g.away(x), 0.0)
                total = draws.of.spread(draws.of.total(above))
                equal = a / draws.of.spread(draws.of.total(draws.whole.double()).clamp(min=1))
                return torch.where(total.abs() <= 1e-6, equal, a * above / total.masked_fill(total == 0, 1.0))
