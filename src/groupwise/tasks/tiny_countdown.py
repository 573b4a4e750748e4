"""The task `tiny_countdown`: make a number out of three small numbers, for exploration and pass@k.

A problem such as `13=7;3;2;` asks for an expression with the value 13 that uses each number once, such as `7+3*2`.
The verifier is `countdown`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from groupwise.data import Ids, Prompt
from groupwise.tasks.calculator import is_held_out
from groupwise.tasks.generated_task import GeneratedTaskSettings

__all__ = ["TinyCountdown"]

NUMBERS, LARGEST, LARGEST_TARGET = 3, 9, 60
TRAINING, HELD_OUT, DEMONSTRATIONS = 2048, 256, 4096
RIGHT = 0.1
"""The share of demonstrations whose expression reaches the target; the others have any value."""

Problem = tuple[int, tuple[int, ...]]
"""A problem: its target, and its numbers in order."""


def random_expression(numbers: Sequence[int], random: Random) -> tuple[str, int]:
    """An expression of the numbers in random order with random signs, and its value. `*` is computed first.

    >>> random_expression([7, 3, 2, 1], Random(0))
    ('1*3-7-2', -6)
    """
    first, *others = random.sample(numbers, len(numbers))
    expression, total, product = str(first), 0, first
    for number in others:
        sign = random.choice("+-*")
        expression += f"{sign}{number}"
        if sign == "*":
            product *= number
        else:
            total, product = total + product, number if sign == "+" else -number
    return expression, total + product


def random_problem(random: Random) -> tuple[str, Problem, str]:
    """The text of a problem, the problem, and a right answer."""
    while True:
        numbers = tuple(random.randint(1, LARGEST) for _ in range(NUMBERS))
        expression, target = random_expression(numbers, random)
        if 0 <= target <= LARGEST_TARGET:
            return written(target, numbers), (target, numbers), expression


def held_out_problem(problem: Problem) -> bool:
    """Whether a problem is in the held-out tenth. The order of its numbers does not matter."""
    target, numbers = problem
    return is_held_out(written(target, sorted(numbers)))


def written(target: int, numbers: Sequence[int]) -> str:
    """Write a problem as text.

    >>> written(13, [7, 3, 2])
    '13=7;3;2;'
    """
    return f"{target}={''.join(f'{n};' for n in numbers)}"


@cache
def split() -> tuple[dict[str, Problem], dict[str, Problem]]:
    """Generate the training problems and the held-out ones, by text, all different."""
    random = Random("tiny_countdown")
    sides: tuple[dict[str, Problem], dict[str, Problem]] = ({}, {})
    while len(sides[0]) < TRAINING or len(sides[1]) < HELD_OUT:
        text, problem, _ = random_problem(random)
        side = held_out_problem(problem)
        if len(sides[side]) < (HELD_OUT if side else TRAINING):
            sides[side][text] = problem
    return sides


@dataclass(frozen=True, slots=True)
class TinyCountdown(GeneratedTaskSettings):
    """Countdown with three small numbers: 2,048 problems to train on, 256 held-out ones.

    >>> task = TinyCountdown().build(lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].row["answer"], len(task), len(task.held_out)
    ('3=4;1;7;', {'numbers': [4, 1, 7], 'target': 3}, 2048, 256)
    """

    def problems(self) -> tuple[Sequence[tuple[str, Problem]], Sequence[tuple[str, Problem]]]:
        training, held_out = split()
        return tuple(training.items()), tuple(held_out.items())

    def prompt(self, problem: tuple[str, Problem], encode: Callable[[str], Ids], /) -> Prompt:
        text, (target, numbers) = problem
        row = {"answer": {"numbers": list(numbers), "target": target}}
        return Prompt(id=text, token_ids=encode(text), text=text, row=row)


def countdown_demonstrations() -> Iterator[dict[str, str]]:
    """Demonstrations for a warm start, without held-out problems: valid expressions, most with a wrong value."""
    random, count = Random("demonstrations of tiny_countdown"), 0
    while count < DEMONSTRATIONS:
        text, problem, right = random_problem(random)
        if held_out_problem(problem):
            continue
        count += 1
        yield {"prompt": text, "answer": right if random.random() < RIGHT else random_expression(problem[1], random)[0]}
