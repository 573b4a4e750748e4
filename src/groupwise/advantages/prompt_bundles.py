"""Advantages of bundles of prompts (RiskPO). The score of a bundle is a sum of rewards, one answer per prompt."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Segments

__all__ = []

LEVELS = tuple(k / 20 for k in range(1, 20))
"""The quantiles of bundle scores that are tracked over a run: 0.05, 0.10, ... 0.95."""


@dataclass(frozen=True, slots=True)
class PromptBundleDraws:
    """Bundles of prompts, and their draws: the j-th draw of a bundle has the j-th answer to each of its prompts."""

    draw_of_sample: Segments
    """The draw (the j-th answers to a bundle's prompts) of each sample."""
    bundle_of_draw: Segments
    """The bundle of prompts of each draw."""
    in_complete_draw: Bool[Tensor, " s"]
    """For each sample, whether its draw is complete: it has an answer to every prompt of the bundle."""

    @property
    def live(self) -> Bool[Tensor, " d"]:
        return self.draw_of_sample.total(self.in_complete_draw.double()) > 0

    def scores(self, x: Float[Tensor, " s"]) -> Float[Tensor, " d"]:
        """The score of each draw: the sum of its answers' rewards, one answer per prompt of a bundle."""
        return self.draw_of_sample.total(torch.where(self.in_complete_draw, x, 0.0))


def draws_of(b: Batch, size: int) -> PromptBundleDraws:
    """Bundles of `size` consecutive groups. Each has as many complete draws as its smallest group has samples."""
    g = b.groups
    draw = (g.prefix(torch.ones_like(b.verdict_score)) - 1).long()
    bundle = torch.arange(g.count, device=draw.device) // size
    count, most = -(-g.count // size), int(g.lengths.max()) if g.count else 0
    smallest = torch.full((count,), most, device=draw.device).scatter_reduce(0, bundle, g.lengths, "amin")
    of = g.spread(bundle)
    bundles = torch.arange(count, device=draw.device).repeat_interleave(most)
    return PromptBundleDraws(Segments(of * most + draw, count * most), Segments(bundles, count), draw < smallest[of])
