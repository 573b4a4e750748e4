"""Advantages from several named scores per verdict: each standardised, as constraints, or as a baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, NeededMeasure, Subscore

__all__ = ["AgainstSubscore", "EachStandardised", "Lagrangian"]


@dataclass(frozen=True, slots=True)
class EachStandardised(Advantage):
    """Weighted sum of group z-scores: `main_reward_weight z(x)`, plus `weight z(score)` for each named subscore. GDPO.

    Each reward is standardised by itself before the sum, so none is lost in the spread of another. A sample without a
    subscore has 0 for it and is not in its statistics.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([0.0, 1.0], subscores={"format": [0.0, 5.0]})])
    >>> [round(x, 3) for x in EachStandardised((("format", 1.0),))(batch.verdict_score, batch).tolist()]
    [-1.414, 1.414]
    """

    group_relative: ClassVar[bool] = True

    weights: tuple[tuple[str, float], ...]
    main_reward_weight: float = 1.0
    ddof: int = 1
    eps: float = 1e-6

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset(Subscore(name) for name, _ in self.weights)

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        start = self.main_reward_weight * b.groups.zscore(x, ddof=self.ddof, eps=self.eps)
        return sum((w * _zscore(b, name, self.ddof, self.eps) for name, w in self.weights), start=start)


@dataclass(frozen=True, slots=True)
class Lagrangian(Advantage):
    """The reward's group z-score plus `multiplier * z-score` of each constraint's score. FGRPO, arXiv:2604.08476.

    The state is `LagrangeMultipliers`. That the z-scores are added so is our reading.
    """

    group_relative: ClassVar[bool] = True

    constraints: tuple[str, ...]
    state: str = "multipliers"
    ddof: int = 1
    eps: float = 1e-6

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset(map(Subscore, self.constraints))

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        multipliers = b.method_states[self.state]
        start = b.groups.zscore(x, ddof=self.ddof, eps=self.eps)
        return sum((multipliers[c] * _zscore(b, c, self.ddof, self.eps) for c in self.constraints), start=start)


@dataclass(frozen=True, slots=True)
class AgainstSubscore(Advantage):
    """The reward minus a baseline: the subscore named by the field `subscore`, such as the greedy answer's reward.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], subscores={"baseline": [0.5, 0.5]})])
    >>> AgainstSubscore()(batch.verdict_score, batch).tolist()
    [0.5, -0.5]
    """

    subscore: str = "baseline"

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.subscore)})

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return x - b[Subscore(self.subscore)]


def _zscore(b: Batch, name: str, ddof: int, eps: float) -> Float[Tensor, " s"]:
    """The group z-score of a named score of the verdicts, over the samples that have it; 0 for the others."""
    part, has = b[Subscore(name)], b.has(Subscore(name))
    score = torch.zeros_like(part)
    score[has] = b.groups.keep(has).zscore(part[has], ddof=ddof, eps=eps)
    return score
