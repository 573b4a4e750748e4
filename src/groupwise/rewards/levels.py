"""Rewards that order answers by how far they got: unreadable, wrong, correct."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Measure, Outcome, Shaping, VerdictPart

__all__ = ["Levels", "WrongIs"]


@dataclass(frozen=True, slots=True)
class Levels(Shaping):
    """Creates the reward: -1 for a correct answer, -3 for a malformed (unreadable) one, -2 for any other.

    With a `form`, an answer whose part of that name is 0 has -4. TRPA, arXiv:2504.04524: only their order matters.
    """

    form: str = ""

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.form)}) if self.form else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        level = torch.full_like(b.score, -2.0)
        level = level.masked_fill(b.outcome == Outcome.malformed, -3.0).masked_fill(b.outcome == Outcome.correct, -1.0)
        if not self.form:
            return level
        formless = b.has(VerdictPart(self.form)) & (b[VerdictPart(self.form)] == 0)
        return level.masked_fill(formless, -4.0)


@dataclass(frozen=True, slots=True)
class WrongIs(Shaping):
    """Replaces the reward of a readable wrong answer by `value`; a malformed answer keeps its reward.

    The reward for a valid format in M-GRPO's released code, arXiv:2511.13288.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> WrongIs(0.1)(batch.score, batch).tolist()
    [1.0, 0.1]
    """

    value: float

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return torch.where(b.outcome == Outcome.wrong, self.value, reward)
