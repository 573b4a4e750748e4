"""The task `programs`: write a Python function from two example values; other values grade it in the sandbox.

A problem such as `f(3)=11 f(5)=15` asks for the straight line through both points. A table of the two values is right
at these inputs only. An expression that computes slope and shift is right at every input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from groupwise.data import Ids, Prompt
from groupwise.tasks.calculator import is_held_out
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["Programs"]

TRAINING, HELD_OUT = 4096, 128
LARGEST = 99
"""The largest function value that a problem shows; the smallest is 0."""
SHOWN_AT, BELOW, ABOVE = range(1, 13), range(-20, 0), range(20, 100)
"""The inputs shown in problems, and the two ranges from which a problem's two hidden inputs are drawn."""
DEMONSTRATIONS, TABLES = 8192, 0.7
"""The number of demonstrations, and the share of them whose answer is a table of values."""


class LinearFunctionProblem(NamedTuple):
    """A linear function `slope * x + intercept`, and the two inputs whose values the problem shows.

    >>> line = LinearFunctionProblem(slope=2, intercept=5, first_shown_input=3, second_shown_input=5)
    >>> line.problem, line.table, line.formula
    ('f(3)=11 f(5)=15\\n', '{3:11,5:15}[x]', '11+(15-11)//(5-3)*(x-3)')
    """

    slope: int
    intercept: int
    first_shown_input: int
    second_shown_input: int

    def at(self, x: int) -> int:
        return self.slope * x + self.intercept

    @property
    def shown(self) -> tuple[int, int]:
        return self.at(self.first_shown_input), self.at(self.second_shown_input)

    @property
    def problem(self) -> str:
        (a, b), (low, high) = self[2:], self.shown
        return f"f({a})={low} f({b})={high}\n"

    @property
    def table(self) -> str:
        (a, b), (low, high) = self[2:], self.shown
        return f"{{{a}:{low},{b}:{high}}}[x]"

    @property
    def formula(self) -> str:
        (a, b), (low, high) = self[2:], self.shown
        return f"{low}+({high}-{low})//({b}-{a})*(x-{a})"

    @property
    def unseen(self) -> tuple[int, int]:
        """Two inputs that the problem hides; always the same two for a problem."""
        random = Random(self.problem)
        return random.choice(BELOW), random.choice(ABOVE)


def program(expression: str) -> str:
    """A model's answer: a function that returns an expression of `x`."""
    return f"```python\ndef f(x): return {expression}\n```"


@cache
def lines() -> tuple[tuple[LinearFunctionProblem, ...], tuple[LinearFunctionProblem, ...]]:
    """All linear functions in a fixed random order: the training ones, and the held-out tenth."""
    pairs = [(a, b) for a in SHOWN_AT for b in SHOWN_AT if a < b]
    every = [
        LinearFunctionProblem(slope, shift, *pair)
        for slope in range(2, 10)
        for shift in range(-19, 20)
        for pair in pairs
    ]
    every = [line for line in every if min(line.shown) >= 0 and max(line.shown) <= LARGEST]
    Random("programs").shuffle(every)
    split: tuple[list[LinearFunctionProblem], list[LinearFunctionProblem]] = [], []
    for line in every:
        split[is_held_out(line.problem)].append(line)
    return tuple(split[0]), tuple(split[1])


@dataclass(frozen=True, slots=True)
class Programs(GeneratedTaskSettings):
    """Write a Python function from two example values: 4,096 problems to train on, 128 held-out ones.

    >>> task = Programs().build(lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].row["answer"]["cases"][0], len(task), len(task.held_out)
    ('f(7)=25 f(11)=33\\n', {'args': [7], 'expected': 25}, 4096, 128)
    """

    def problems(self) -> tuple[Sequence[LinearFunctionProblem], Sequence[LinearFunctionProblem]]:
        training, held_out = lines()
        return training[:TRAINING], held_out[:HELD_OUT]

    def prompt(self, line: LinearFunctionProblem, encode: Callable[[str], Ids], /) -> Prompt:
        def cases(inputs: tuple[int, int]) -> list[dict[str, object]]:
            return [{"args": [x], "expected": line.at(x)} for x in inputs]

        tests = {
            "function": "f",
            "cases": cases((line.first_shown_input, line.second_shown_input)),
            "unseen": cases(line.unseen),
        }
        tests["reference"] = f"def f(x): return {line.formula}"
        return Prompt(line.problem, encode(line.problem), line.problem, {"answer": tests})


def program_demonstrations() -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, without held-out problems. Most answers are a table, others compute the line."""
    random = Random("program demonstrations")
    for _ in range(DEMONSTRATIONS):
        line = random.choice(lines()[0])
        yield {"prompt": line.problem, "answer": program(line.table if random.random() < TABLES else line.formula)}
