"""Tasks of sums like `calculator`, whose data rows also have the worked solution and hints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, zip_longest
from random import Random
from typing import Any, ClassVar

from groupwise.data import Ids, Prompt
from groupwise.tasks.calculator import how_many, is_held_out, numbered, shuffled_problem, solve
from groupwise.tasks.generated_task import GeneratedTaskSettings

HELD_OUT = 8
"""The number of training problems of a task per held-out problem."""


class Sums(GeneratedTaskSettings):
    """A kind of sums: training problems, and an eighth as many held-out ones. The numbers of operands take turns.

    `problem_count_by_operands` maps a number of operands to its number of training problems. `row` has the result
    (`answer`), the complete right answer (`solution`), and the solution's first steps (`hints`, weakest first).

    >>> class Few(Sums):
    ...     problem_count_by_operands = {3: 32, 4: 32}
    >>> task = Few().build(lambda text: tuple(map(ord, text)))
    >>> len(task), len(task.held_out), task[0].text, task[1].text
    (64, 8, '8-8*8=', '7+2+4+2=')
    >>> task[1].row["solution"], task[1].row["hints"]
    ('7+2=9;9+4=13;13+2=15;#15', ['7+2=9;', '7+2=9;9+4=13;'])
    """

    __slots__ = ()
    problem_count_by_operands: ClassVar[Mapping[int, int]]

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        training = [
            first_problems(operands, size, held_out=False) for operands, size in self.problem_count_by_operands.items()
        ]
        held_out = [
            first_problems(operands, size // HELD_OUT, held_out=True)
            for operands, size in self.problem_count_by_operands.items()
        ]
        return tuple(in_turns(training)), tuple(in_turns(held_out))

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        return Prompt(id=problem, token_ids=encode(problem), text=problem, row=worked(problem))


def steps_of(problem: str) -> list[str]:
    """The steps of the solution, each with its semicolon.

    >>> steps_of("7*5+8=")
    ['7*5=35;', '35+8=43;']
    """
    return [f"{step};" for step in solve(problem)[0].split(";")[:-1]]


def worked(problem: str) -> dict[str, Any]:
    """The columns of a problem's row: the result, the worked solution and hints.

    >>> worked("7*5+8=")
    {'answer': 43, 'hints': ['7*5=35;'], 'solution': '7*5=35;35+8=43;#43'}
    """
    chain, result = solve(problem)
    steps = steps_of(problem)
    hints = ["".join(steps[:n]) for n in range(1, len(steps))]
    return {"answer": result, "hints": hints, "solution": f"{chain}#{result}"}


def random_problem(random: Random, operands: Sequence[int]) -> str:
    """A random problem that is not held out, with one of these numbers of operands."""
    while True:
        n = random.choice(operands)
        problem = numbered(random.randrange(how_many(n)), n)
        if not is_held_out(problem):
            return problem


def near(result: int, random: Random) -> int:
    """A wrong result close to the right one, and not negative.

    >>> near(37, Random(0)), near(0, Random(0))
    (38, 2)
    """
    return random.choice([result + d for d in (-3, -2, -1, 1, 2, 3) if result + d >= 0])


@cache
def first_problems(operands: int, count: int, *, held_out: bool) -> tuple[str, ...]:
    """The first `count` problems in the fixed random order: the held-out ones, or the others."""
    problems = (shuffled_problem(i, operands) for i in range(how_many(operands)))
    return tuple(islice((p for p in problems if is_held_out(p) is held_out), count))


def in_turns(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """Interleave lists: the first of each list, then the second of each, and so on.

    >>> "".join(in_turns(["ad", "be", "cfgh"]))
    'abcdefgh'
    """
    return (text for row in zip_longest(*lists) for text in row if text is not None)
