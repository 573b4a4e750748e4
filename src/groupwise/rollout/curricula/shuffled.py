"""Curricula choose the prompts of each iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from groupwise.core import BadData
from groupwise.data import Curriculum, Draw, Rollout, Task
from groupwise.models import RandomPurpose, permutation

__all__ = ["Shuffled", "ShuffledRows"]


class ShuffledState(TypedDict):
    """State of `Shuffled`: the seed of its permutations, and the number of prompts drawn so far."""

    seed: int
    drawn_count: int


@dataclass(frozen=True, slots=True)
class Shuffled(Curriculum[ShuffledState]):
    """Draws prompts in random order: each pass over the task has a new order and contains every prompt once."""

    def init(self, task: Task, seed: int) -> ShuffledState:
        return ShuffledState(seed=seed, drawn_count=0)

    def draw(self, state: ShuffledState, task: Task, n: int, group_size: int) -> tuple[ShuffledState, list[Draw]]:
        state, indices = self.indices(state, task, n)
        return state, [Draw(0, task[i], group_size) for i in indices]

    def indices(self, state: ShuffledState, task: Task, n: int) -> tuple[ShuffledState, list[int]]:
        """The new state and the task indices of the next `n` prompts, for curricula that build on this one."""
        check_prompts(task)
        seed, first = state["seed"], state["drawn_count"]
        positions = (divmod(i, len(task)) for i in range(first, first + n))
        indices = [int(self.order(seed, epoch, len(task))[position]) for epoch, position in positions]
        return ShuffledState(seed=seed, drawn_count=first + n), indices

    def order(self, seed: int, epoch: int, n: int) -> NDArray[np.int64]:
        """The keyed order of the `n` prompts in one pass over the task."""
        return _order(RandomPurpose.CURRICULUM, seed, epoch, n)

    def observe(self, state: ShuffledState, rollouts: Sequence[Rollout]) -> ShuffledState:
        return state

    def end_iteration(self, state: ShuffledState, rollouts: Sequence[Rollout]) -> ShuffledState:
        return state


@dataclass(frozen=True, slots=True)
class ShuffledRows(Shuffled):
    """As `Shuffled`, for rows of stored answers: an order unrelated to that of the prompts of a later sampled run.

    Both may have one seed and one source of rows, as the phases of a recipe do.
    """

    def order(self, seed: int, epoch: int, n: int) -> NDArray[np.int64]:
        """The keyed order of the `n` rows in one pass over the task."""
        return _order(RandomPurpose.DEMONSTRATE, seed, epoch, n)


def check_prompts(task: Task) -> None:
    """BadData if the task has no prompts for training."""
    if not len(task):
        raise BadData("the task has no prompts", fix="use a task with prompts outside its held-out split")


@lru_cache(maxsize=4)  # an epoch is drawn in many small parts, and its order takes a sort of all prompts
def _order(purpose: RandomPurpose, seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    counter = (epoch, 0) if purpose == RandomPurpose.CURRICULUM else (0, epoch)
    order = permutation((seed, purpose), *counter, n)
    order.flags.writeable = False
    return order
