"""The task `glyphs`: pictures of two coloured patches in a relation, for the packaged flow model `glyphs`.

A problem such as `red left blue` asks for a red patch anywhere left of a blue one, on a dark ground of four places. A
quarter of the problems is held out, and the packaged model was not trained on them either.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["GLYPH_COLOURS", "GLYPH_RELATIONS", "GLYPH_SHAPE", "Glyphs"]

GLYPH_COLOURS = {
    "red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "cyan": (0, 1, 1),
    "magenta": (1, 0, 1),
}  # fmt: skip
"""Whether each channel (red, green, blue) is light, by colour. All dark is the ground; all light is no colour."""
GLYPH_RELATIONS = {"left": (0, 1), "right": (0, -1), "above": (1, 0), "below": (-1, 0)}
"""The direction from the first patch to the second, in rows and columns, by relation."""
GLYPH_SHAPE = (3, 8, 8)
"""Channels, rows and columns of a picture of 2x2 places, whose numbers are from -1 (dark) to 1 (light)."""
HELD_OUT = 30


@cache
def glyph_split() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The problems to train on, and the held-out ones."""
    pairs = itertools.permutations(GLYPH_COLOURS, 2)
    problems = [f"{a} {relation} {b}" for (a, b), relation in itertools.product(pairs, GLYPH_RELATIONS)]
    Random("glyphs").shuffle(problems)
    return tuple(problems[HELD_OUT:]), tuple(problems[:HELD_OUT])


@dataclass(frozen=True, slots=True)
class Glyphs(GeneratedTaskSettings):
    """Pictures of two coloured patches in a relation: 120 problems, 30 of them held out.

    >>> task = Glyphs().build(lambda text: tuple(map(len, text.split())))
    >>> len(task), len(task.held_out), task[0].row["answer"]
    (90, 30, 'green right red')
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        return glyph_split()

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        return Prompt(problem, encode(problem), problem, {"answer": problem})
