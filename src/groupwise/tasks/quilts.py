"""The task `quilts`: pictures of four patches, each asked for in a colour, for the packaged flow model `quilts`.

A problem such as `red dark blue green` names the colours of the patches: the upper row, then the lower row. A quarter
of the combinations is held out, and the packaged model was not trained on it either.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random

from groupwise.data import Ids, Prompt

__all__ = ["QUILT_COLOURS", "QUILT_SHAPE", "Quilts"]

QUILT_COLOURS = ("dark", "red", "green", "blue")
QUILT_SHAPE = (3, 8, 8)
"""Channels (red, green, blue), rows and columns of a picture, whose numbers are from -1 (dark) to 1 (light)."""
HELD_OUT = 64


@cache
def quilt_split() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The problems to train on, and the held-out ones."""
    problems = [" ".join(colours) for colours in itertools.product(QUILT_COLOURS, repeat=4)]
    Random("quilts").shuffle(problems)
    return tuple(problems[HELD_OUT:]), tuple(problems[:HELD_OUT])


@dataclass(frozen=True, slots=True)
class Quilts:
    """All 256 problems, 64 of them held out. `row["answer"]` lists the four colours.

    >>> task = Quilts(encode=lambda text: tuple(map(len, text.split())))
    >>> len(task), len(task.held_out), task[0].row["answer"]
    (192, 64, ['dark', 'green', 'blue', 'red'])
    """

    encode: Callable[[str], Ids]
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out", tuple(map(self._prompt, quilt_split()[1])))

    def __len__(self) -> int:
        return len(quilt_split()[0])

    def __getitem__(self, index: int) -> Prompt:
        return self._prompt(quilt_split()[0][index])

    def _prompt(self, problem: str) -> Prompt:
        return Prompt(problem, self.encode(problem), problem, {"answer": problem.split()})
