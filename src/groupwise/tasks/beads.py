"""The task `beads`: a string of eight beads with a pattern and two colours, for the packaged masked model `beads`.

A problem such as `mirror red green` asks for a pattern (`mirror`: the string reads the same backwards; `repeat`: its
halves are equal) of two colours, both of which occur. The answer has one letter a bead: `rggrrggr`. A quarter of the
problems is held out, and the packaged model was not trained on them.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["BEAD_COLOURS", "BEAD_PATTERNS", "STRING_LENGTH", "Beads", "has_pattern"]

STRING_LENGTH = 8
"""The number of beads of a string."""
BEAD_PATTERNS = ("mirror", "repeat")
BEAD_COLOURS = ("red", "green", "blue", "yellow", "purple", "white")
HELD_OUT = 15


def has_pattern(beads: str, pattern: str) -> bool:
    """Whether a string of beads has a pattern.

    >>> has_pattern("rgbbbbgr", "mirror"), has_pattern("rgbbbbgr", "repeat"), has_pattern("rgbyrgby", "repeat")
    (True, False, True)
    """
    half = len(beads) // 2
    return beads[half:] == (beads[:half][::-1] if pattern == "mirror" else beads[:half])


@cache
def bead_split() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The problems to train on, and the held-out ones."""
    pairs = itertools.permutations(BEAD_COLOURS, 2)
    problems = [" ".join((pattern, *pair)) for pattern, pair in itertools.product(BEAD_PATTERNS, pairs)]
    Random("beads").shuffle(problems)
    return tuple(problems[HELD_OUT:]), tuple(problems[:HELD_OUT])


@dataclass(frozen=True, slots=True)
class Beads(GeneratedTaskSettings):
    """Strings of eight beads with a pattern and two colours: 60 problems, 15 of them held out.

    >>> task = Beads().build(lambda text: tuple(map(len, text.split())))
    >>> len(task), len(task.held_out), task[0].row["answer"]
    (45, 15, ['repeat', 'purple', 'blue'])
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        return bead_split()

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        return Prompt(problem, encode(problem), problem, {"answer": problem.split()})
