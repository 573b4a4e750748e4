"""The task `rings`: points in the plane, asked for by one of eight directions, for the packaged flow model `rings`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from groupwise.data import Ids, Prompt

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
class Rings:
    """Eight problems. `row["answer"]` is the direction. The held-out split has the same problems with other noise.

    >>> task = Rings(encode=lambda text: (len(text),))
    >>> task[2].text, task[2].row["answer"], len(task), len(task.held_out)
    ('north', 'north', 8, 128)
    """

    encode: Callable[[str], Ids]
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out", tuple(map(self._prompt, DIRECTIONS)) * REPEATS)

    def __len__(self) -> int:
        return len(DIRECTIONS)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompt(DIRECTIONS[index])

    def _prompt(self, direction: str) -> Prompt:
        return Prompt(direction, self.encode(direction), direction, {"answer": direction})
