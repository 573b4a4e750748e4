"""Shaping: verdicts to one reward per sample. The first shaping creates the reward; each later one changes it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Outcome, Shaping, Subscore

__all__ = ["AddSubscore", "AddWellFormed", "Correctness", "Score"]


@dataclass(frozen=True, slots=True)
class Correctness(Shaping):
    """Creates the reward: `correct_reward` for a correct answer, `wrong_reward` for any other; a score is between them.

    A scored answer is neither correct nor wrong. Its reward is `wrong_reward + score * (correct_reward -
    wrong_reward)`.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> Correctness(wrong_reward=-1.0)(batch.verdict_score, batch).tolist()
    [1.0, -1.0]
    """

    correct_reward: float = 1.0
    wrong_reward: float = 0.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        reward = torch.full_like(b.verdict_score, self.wrong_reward).masked_fill(
            b.outcome == Outcome.correct, self.correct_reward
        )
        graded = self.wrong_reward + b.verdict_score * (self.correct_reward - self.wrong_reward)
        return torch.where(b.outcome == Outcome.scored, graded, reward)


@dataclass(frozen=True, slots=True)
class Score(Shaping):
    """Creates the reward from the verdict's score: `offset + scale * score`.

    The score of a verdict without one is 1 if the answer is correct and 0 if not. So `Score()` is the default reward
    for verdicts of both kinds.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.25])])
    >>> Score(scale=2.0, offset=-1.0)(batch.verdict_score, batch).tolist()
    [1.0, -0.5]
    """

    scale: float = 1.0
    offset: float = 0.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return self.offset + self.scale * b.verdict_score


@dataclass(frozen=True, slots=True)
class AddSubscore(Shaping):
    """Adds `weight` times a named score of the verdict, such as a format score; 0 if the verdict does not have it.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], subscores={"format": [0.0, 1.0]})])
    >>> AddSubscore("format", 0.5)(batch.verdict_score, batch).tolist()
    [1.0, 0.5]
    """

    subscore: str
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.subscore)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward + self.weight * b[Subscore(self.subscore)]


@dataclass(frozen=True, slots=True)
class AddWellFormed(Shaping):
    """Adds `weight` to the reward of each sample, unless its verdict is malformed (no readable final answer).

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> AddWellFormed(2.0)(batch.verdict_score, batch).tolist()
    [3.0, 2.0]
    """

    weight: float = 1.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward + self.weight * (b.outcome != Outcome.malformed).to(reward.dtype)
