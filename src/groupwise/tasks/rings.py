"""The task `rings`: points in the plane, asked for by one of eight directions, for the packaged flow model `rings`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groupwise.data import Ids, Prompt
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["DIRECTIONS", "RING_RADIUS", "Rings"]

DIRECTIONS = ("east", "northeast", "north", "northwest", "west", "southwest", "south", "southeast")
RING_RADIUS = 2.0
REPEATS = 16
"""How often the held-out split repeats each direction: an answer differs by its noise."""


def ring_centre(direction: str) -> tuple[float, float]:
    """The point of the circle in a direction.

    >>> ring_centre("west")[0]
    -2.0
    """
    angle = 2 * math.pi * DIRECTIONS.index(direction) / len(DIRECTIONS)
    return RING_RADIUS * math.cos(angle), RING_RADIUS * math.sin(angle)


@dataclass(frozen=True, slots=True)
class Rings(GeneratedTaskSettings):
    """Points on a ring in one of eight directions. The held-out split has the same problems with other noise.

    >>> task = Rings().build(lambda text: (len(text),))
    >>> task[2].text, task[2].row["answer"], len(task), len(task.held_out)
    ('north', 'north', 8, 128)
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        return DIRECTIONS, DIRECTIONS * REPEATS

    def prompt(self, direction: str, encode: Callable[[str], Ids], /) -> Prompt:
        return Prompt(direction, encode(direction), direction, {"answer": direction})
