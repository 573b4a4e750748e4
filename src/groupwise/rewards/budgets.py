"""Shaping by length: a reward for the earliest correct answers of a group, or for a length near a budget."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Measure, Outcome, Shaping, VerdictPart

__all__ = ["EarlyExitReward", "LengthBudget"]


@dataclass(frozen=True, slots=True)
class EarlyExitReward(Shaping):
    """`base ** rank` for a correct answer, else 0; rank 0 is the group's correct answer that stopped reasoning first.

    Creates the reward. The strategy `EarlyExits` writes the verdict part `exit`. S-GRPO, arXiv:2505.07686.
    """

    needs: ClassVar[frozenset[Measure]] = frozenset({VerdictPart("exit")})

    base: float = 0.5

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        correct, place, g = b.outcome == Outcome.correct, b[VerdictPart("exit")], b.groups.index
        earlier = (g[:, None] == g) & correct & (place < place[:, None])
        rank = earlier.sum(1).to(reward.dtype)
        return torch.where(correct, self.base**rank, 0.0)


@dataclass(frozen=True, slots=True)
class LengthBudget(Shaping):
    """Adds `weight` times a score of the length: 1 at `budget` tokens, less above, and less below unless `flat`.

    The score is 0 from `most` tokens on, by default twice the budget. "Train long, think short", arXiv:2508.08940; that
    the whole answer counts as thought is our reading.
    """

    budget: float = 256.0
    weight: float = 0.6
    most: float = 0.0
    flat: bool = False

    def __post_init__(self) -> None:
        if self.budget <= 0 or 0 < self.most <= self.budget:
            raise ValueError(f"{self}: needs budget > 0, and most = 0 or most > budget")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        length, most = b.length.to(reward.dtype), self.most or 2 * self.budget
        rising = torch.ones_like(length) if self.flat else length / self.budget
        falling = ((most - length) / (most - self.budget)).clamp(min=0)
        return reward + self.weight * torch.where(length <= self.budget, rising, falling)
