"""The task `quilts`: pictures of four patches, each asked for in a colour, for the packaged flow model `quilts`.

A problem such as `red dark blue green` names the colours of the patches: the upper row, then the lower row. A quarter
of the combinations is held out, and the packaged model was not trained on it either.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.generated_task import GeneratedTaskSettings

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
class Quilts(GeneratedTaskSettings):
    """Pictures of four coloured patches: 256 problems, 64 of them held out.

    >>> task = Quilts().build(lambda text: tuple(map(len, text.split())))
    >>> len(task), len(task.held_out), task[0].row["answer"]
    (192, 64, ['dark', 'green', 'blue', 'red'])
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        return quilt_split()

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        return Prompt(problem, encode(problem), problem, {"answer": problem.split()})
