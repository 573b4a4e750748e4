"""The task `wordy_sums`: short sums whose demonstrations repeat steps, to study methods that shorten answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from groupwise.tasks.calculator import solve
from groupwise.tasks.sums import Sums, near, random_problem, steps_of

__all__ = ["WordySums"]

SIZES = {3: 2048, 4: 2048}
DEMONSTRATIONS, GUESSES = 4096, 0.3
"""The number of demonstrations, and the share of them that guess a number near the result."""
MOST_TIMES = 3


@dataclass(frozen=True, slots=True)
class WordySums(Sums):
    """Short sums with wordy demonstrations: 4,096 problems to train on, and 512 held-out ones."""

    problem_count_by_operands: ClassVar[Mapping[int, int]] = SIZES


def wordy_demonstrations() -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, without held-out problems. Most write each step one to three times.

    >>> next(wordy_demonstrations())
    {'prompt': '7*4+5=', 'answer': '#30'}
    """
    random = Random("demonstrations of wordy_sums")
    for _ in range(DEMONSTRATIONS):
        problem = random_problem(random, tuple(SIZES))
        result = solve(problem)[1]
        if random.random() < GUESSES:
            answer = f"#{near(result, random)}"
        else:
            answer = "".join(step * random.randint(1, MOST_TIMES) for step in steps_of(problem)) + f"#{result}"
        yield {"prompt": problem, "answer": answer}
