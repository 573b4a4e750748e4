"""Shaping by likelihood: rewards that depend on how probable an answer is under the policy or another model."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groupwise.data import Batch, Logp, Measure, Shaping

__all__ = ["ConsistencyBonus", "Unlikeliness"]

ROUNDING = 1e-9
"""Differences from a mean up to this are rounding: the float64 mean of six times 0.95 is above 0.95."""


@dataclass(frozen=True, slots=True)
class Unlikeliness(Shaping):
    """`reward (1 - beta k / G)`: k is the rank of an answer's mean log-prob in its group of G; 0 is the least likely.

    Rare correct answers gain most. An answer without a token is the least likely. arXiv:2506.02355.
    """

    needs: ClassVar[frozenset[Measure]] = frozenset({Logp("policy")})

    beta: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"{self}: needs 0 <= beta <= 1, so that correct answers stay above wrong ones")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward * (1 - self.beta * _rank(b).to(reward.dtype) / b.groups.spread(b.groups.size(reward)))


def _rank(b: Batch) -> Int[Tensor, " s"]:
    """The rank of each sample in its group by mean log-prob, from 0 for the lowest."""
    s, g = b.sequences, b.groups
    mean = torch.where(s.lengths > 0, s.mean(b.logp_old).double(), -torch.inf)
    order = mean.argsort(stable=True)
    order = order[g.index[order].argsort(stable=True)]  # by group, and within it by likelihood
    first = (g.lengths.cumsum(0) - g.lengths)[g.index[order]]
    return torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device) - first)


@dataclass(frozen=True, slots=True)
class ConsistencyBonus(Shaping):
    """Adds a bonus to high-scoring answers if another model finds the final answer likely after the reasoning.

    High: a score above `floor` and not below the group's mean. Likely: the mean probability of the tokens between
    `opens` and `closes` (empty: the end), at most `most`, is not below the mean of the high-scoring answers, less
    `margin`. A number that rounding alone puts below a mean equals it. The bonus is `bonus` times the score. GRPO-CARE,
    arXiv:2506.16141.
    """

    opens: str = "<answer>"
    closes: str = "</answer>"
    bonus: float = 0.5
    most: float = 0.95
    margin: float = 0.0
    floor: float = 0.1
    model: str = "reference"

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Logp(self.model)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, s, inside = b.groups, b.sequences, _between(b, self.opens, self.closes)
        count = s.total(inside.double()) + 1e-6  # the authors' code; without an answer the probability is 1
        p = (s.total(torch.where(inside, b[Logp(self.model)].double(), 0.0)) / count).exp().clamp(max=self.most)
        good = (b.score > self.floor) & (g.away(b.score) >= -ROUNDING)
        likely = torch.zeros_like(good)
        likely[good] = g.keep(good).away(p[good]) >= -self.margin - ROUNDING
        return reward + self.bonus * b.score * likely


def _between(b: Batch, opens: str, closes: str) -> Bool[Tensor, " n"]:
    """For each token, whether it is after the last text `opens` and before the next `closes` or the answer's end."""
    inside: list[list[bool]] = []
    for sample in b.samples:
        at = sample.text.rfind(opens)
        first = at + len(opens)
        end = sample.text.find(closes, first) if closes else -1
        last = len(sample.text) if end < 0 else end
        spans = zip((0, *sample.ends), sample.ends)
        tokens = [at >= 0 and first <= i < j <= last for i, j in spans]
        inside.append(tokens or [False] * len(sample.tokens))
    return b.at_trained(inside, torch.bool)
