"""The task `largest`: name the largest of four numbers. A small pretrained model learns it within minutes on a CPU.

1,500 problems in words, for the chat template. SmolLM2-135M-Instruct explains instead of answering, and is often cut
off before it names a number; docs/real-model.md has its curve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["Largest"]

PROBLEMS = 1_500
NUMBERS, LEAST, MOST = 4, 10, 99
SHARE = 0.1
"""The share of held-out problems."""

Problem = tuple[int, tuple[int, ...]]
"""A problem: its index, from 1, and its numbers."""


@dataclass(frozen=True, slots=True)
class Largest(GeneratedTaskSettings):
    """Name the largest of four numbers: 1,344 training problems and 156 held-out ones.

    >>> task = Largest().build(lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].row["answer"]
    ('Which number is the largest: 27, 82, 18, 42? Answer with the number only.', 82)
    >>> len(task), len(task.held_out)
    (1344, 156)
    """

    def problems(self) -> tuple[Sequence[Problem], Sequence[Problem]]:
        sides: tuple[list[Problem], list[Problem]] = ([], [])
        for problem in enumerate(numbers_of_problems(), start=1):
            sides[is_held_out(question(problem[1]))].append(problem)
        return sides

    def prompt(self, problem: Problem, encode: Callable[[str], Ids], /) -> Prompt:
        number, numbers = problem
        text = question(numbers)
        return Prompt(id=f"largest/{number}", token_ids=encode(text), text=text, row={"answer": max(numbers)})


def question(numbers: Sequence[int]) -> str:
    """The text of a problem."""
    return f"Which number is the largest: {', '.join(map(str, numbers))}? Answer with the number only."


@cache
def numbers_of_problems() -> tuple[tuple[int, ...], ...]:
    """The four different numbers of each problem, in a fixed order.

    >>> numbers_of_problems()[:2]
    ((27, 82, 18, 42), (25, 73, 67, 70))
    """
    random = Random(1)
    problems: dict[tuple[int, ...], None] = {}
    while len(problems) < PROBLEMS:
        problems[tuple(random.sample(range(LEAST, MOST + 1), NUMBERS))] = None
    return tuple(problems)


def is_held_out(text: str) -> bool:
    """Whether a problem is held out: by the hash of its text, as rows of a file are.

    >>> is_held_out("Which number is the largest: 27, 82, 18, 42? Answer with the number only.")
    False
    """
    return int.from_bytes(sha256(text.encode()).digest()[:8]) / 2**64 < SHARE
