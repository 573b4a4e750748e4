"""The task `mixed_sums`: easy and hard sums together, with a price for each step of an answer.

The verifier is `SumSteps` with `step_price = 0.02`. Thinking pays on six operands; on two it costs more than it brings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from groupwise.tasks.calculator import solve
from groupwise.tasks.sums import Sums, random_problem, worked

__all__ = ["MixedSums"]

SIZES = {2: 128, 3: 1024, 6: 1024}
DEMONSTRATIONS, DROPPED = 4096, 0.5
"""The number of demonstrations, and the share of them without steps."""


@dataclass(frozen=True, slots=True)
class MixedSums(Sums):
    """Easy and hard sums together: problems with two, three and six operands."""

    problem_count_by_operands: ClassVar[Mapping[int, int]] = SIZES


def mixed_demonstrations() -> Iterator[dict[str, str]]:
    """Right answers for a warm start, without held-out problems; half of them leave out the steps.

    >>> next(mixed_demonstrations())
    {'prompt': '5*9=', 'answer': '5*9=45;#45'}
    """
    random = Random("demonstrations of mixed_sums")
    for _ in range(DEMONSTRATIONS):
        problem = random_problem(random, tuple(SIZES))
        dropped = random.random() < DROPPED
        yield {"prompt": problem, "answer": f"#{solve(problem)[1]}" if dropped else str(worked(problem)["solution"])}
