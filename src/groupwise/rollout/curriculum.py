"""Which prompts come next."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from groupwise.data import BadData, Draw, Rollout, Task
from groupwise.models import Purpose, permutation

SOCKET = "Curriculum"
__all__ = ["Shuffled"]


class Drawn(TypedDict):
    """All that `Shuffled` remembers: what names its orders, and how many draws the run has made."""

    seed: int
    drawn: int


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Epoch after epoch, each in an order of its own: every prompt once before any comes again."""

    def init(self, task: Task, seed: int) -> Drawn:
        return Drawn(seed=seed, drawn=0)

    def draw(self, state: Drawn, task: Task, n: int, group_size: int) -> tuple[Drawn, list[Draw]]:
        if not len(task):
            raise BadData("the task has no prompts", fix="give a task with prompts outside its held-out part")
        seed, first = state["seed"], state["drawn"]
        draws = []
        for i in range(first, first + n):
            epoch, place = divmod(i, len(task))
            draws.append(Draw(i, task[int(_order(seed, epoch, len(task))[place])], group_size))
        return Drawn(seed=seed, drawn=first + n), draws

    def observe(self, state: Drawn, rollouts: Sequence[Rollout]) -> Drawn:
        return state


@lru_cache(maxsize=4)  # an epoch is drawn in many small parts, and its order is a sort of all its prompts
def _order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    order = permutation((seed, Purpose.CURRICULUM), epoch, 0, n)
    order.flags.writeable = False
    return order
