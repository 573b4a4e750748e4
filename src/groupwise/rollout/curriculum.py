"""Which prompts come next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from groupwise.data import BadData, Draw, Family, Task
from groupwise.models import Purpose, permutation


class Drawn(TypedDict):
    """All that `Shuffled` remembers: what names its orders, and how many draws the run has made."""

    seed: int
    drawn: int


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Epoch after epoch, each in an order of its own: every prompt once before any comes again."""

    def init(self, task: Task, seed: int) -> Drawn:
        if not len(task):
            raise BadData("the task has no prompts", fix="give a task with prompts outside its held-out part")
        return Drawn(seed=seed, drawn=0)

    def draw(self, state: Drawn, task: Task, n: int, group_size: int) -> tuple[Drawn, list[Draw]]:
        seed, first = state["seed"], state["drawn"]
        orders = {}
        draws = []
        for i in range(first, first + n):
            epoch, place = divmod(i, len(task))
            if epoch not in orders:
                orders[epoch] = permutation((seed, Purpose.CURRICULUM), epoch, 0, len(task))
            draws.append(Draw(i, task[int(orders[epoch][place])], group_size))
        return Drawn(seed=seed, drawn=first + n), draws

    def observe(self, state: Drawn, families: Sequence[Family]) -> Drawn:
        return state
