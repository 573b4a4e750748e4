"""The task `delegated_sums`: a main agent that can leave each step of a sum to a helper.

The main agent writes the next step up to its `=` and ends its turn. A strategy samples the helper's answer `#35` to
that prompt and appends the number:

    7*5+8=         the problem
    7*5=           the main agent asks
    35;            the helper's number
    35+8=          the main agent asks
    43;            the helper's number
    #43            the main agent's answer

The demonstrations show both roles. Most main agents guess at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from groupwise.tasks.calculator import solve
from groupwise.tasks.sums import Sums, near, random_problem, steps_of

__all__ = ["DelegatedSums"]

SIZES = {4: 2048, 5: 2048}
DEMONSTRATIONS = 8192
HELPED, DELEGATED = 0.4, 0.3
"""The share of demonstrations for the helper; of the others, the share that delegates every step."""
HELPER_ERRORS = 0.1
"""The share of the helper's answers that are wrong."""


@dataclass(frozen=True, slots=True)
class DelegatedSums(Sums):
    """Sums whose steps a main agent can delegate to a helper: 4,096 problems to train on, 512 held-out ones."""

    problem_count_by_operands: ClassVar[Mapping[int, int]] = SIZES


def delegated_demonstrations() -> Iterator[dict[str, Any]]:
    """Demonstrations for a warm start, without held-out problems: helpers' steps and main agents' conversations."""
    random = Random("demonstrations of delegated_sums")
    for _ in range(DEMONSTRATIONS):
        problem = random_problem(random, tuple(SIZES))
        if random.random() < HELPED:
            yield helper_row(random.choice(steps_of(problem)), random)
        else:
            yield main_row(problem, random)


def helper_row(step: str, random: Random) -> dict[str, Any]:
    """One step of a sum as a demonstration for the helper.

    >>> helper_row("35+8=43;", Random(1))
    {'prompt': '35+8=', 'answer': '#43'}
    """
    problem, _, result = step.removesuffix(";").partition("=")
    wrong = random.random() < HELPER_ERRORS
    return {"prompt": f"{problem}=", "answer": f"#{near(int(result), random) if wrong else result}"}


def main_row(problem: str, random: Random) -> dict[str, Any]:
    """A demonstration for the main agent: a conversation that delegates all steps, or a wrong guess."""
    result = solve(problem)[1]
    messages = [{"role": "user", "content": problem}]
    if random.random() >= DELEGATED:
        return {"messages": [*messages, {"role": "assistant", "content": f"#{near(result, random)}"}]}
    for step in steps_of(problem):
        asked, _, number = step.partition("=")
        messages += [{"role": "assistant", "content": f"{asked}="}, {"role": "tool", "content": number}]
    return {"messages": [*messages, {"role": "assistant", "content": f"#{result}"}]}
