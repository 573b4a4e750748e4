"""The task `calculator`: short arithmetic computed from left to right; the demonstrations show all steps or none.

There are 16,402,222 problems: 53,122 with four operands, 910,780 with five, 15,438,320 with six. Each has a number,
from which it is computed. Four, five and six operands are equally frequent; otherwise nearly all would have six.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import count, islice
from random import Random

from groupwise.data import Ids, Outcome, Prompt, Sample, Verdict, verdicts_have
from groupwise.tasks.generated_task import GeneratedTaskSettings, LazySequence

__all__ = ["Calculator", "calculator_answer", "demonstrations"]

OPERANDS = (4, 5, 6)
LARGEST = 49
TRAINING = 16_384
HELD_OUT = 512
WINDOW = 8


def solve(problem: str) -> tuple[str, int]:
    """The worked solution as a chain of single steps, and its result.

    >>> solve("7*5+8-9+3=")
    ('7*5=35;35+8=43;43-9=34;34+3=37;', 37)
    """
    total, chain = int(problem[0]), ""
    for sign, operand in zip(problem[1:-1:2], problem[2:-1:2], strict=True):
        after = _apply(sign, total, int(operand))
        chain, total = f"{chain}{total}{sign}{operand}={after};", after
    return chain, total


def is_held_out(problem: str) -> bool:
    """Whether a problem is in the held-out tenth, which no run trains on: its SHA-256's first 8 bytes modulo 10 are 0.

    >>> is_held_out("7*5+8-9+3=")
    False
    """
    return int.from_bytes(sha256(problem.encode()).digest()[:8]) % 10 == 0


@dataclass(frozen=True, slots=True)
class Calculator(GeneratedTaskSettings):
    """Short arithmetic from left to right: 16,384 problems to train on, and 512 held-out ones.

    >>> task = Calculator().build(lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].row["answer"], len(task), len(task.held_out)
    ('7+2+4+2=', 15, 16384, 512)
    """

    def problems(self) -> tuple[Sequence[str], Sequence[str]]:
        return LazySequence(TRAINING, training_problem), _held_out()

    def prompt(self, problem: str, encode: Callable[[str], Ids], /) -> Prompt:
        return Prompt(id=problem, token_ids=encode(problem), text=problem, row={"answer": solve(problem)[1]})


def training_problem(index: int) -> str:
    """The training problem with this index, from 0."""
    block, turn = divmod(index, len(OPERANDS))
    # Each index has its own window of problems, so all problems differ and no list is needed. A test checks
    # that with these constants every window contains a training problem.
    window = range(block * WINDOW, (block + 1) * WINDOW)
    return next(p for i in window if not is_held_out(p := shuffled_problem(i, OPERANDS[turn])))


@verdicts_have("chain_true")
async def calculator_answer(prompt: Prompt, sample: Sample) -> Verdict:
    """Right if the answer has exactly one `#` and ends in `#` and the result.

    An answer without exactly one `#`, or without an integer behind it, is malformed. Only the result is graded. The
    subscore `chain_true` is 1 if the text before the `#` is the correct chain of all steps, else 0 (also for a guess).
    """
    form = re.fullmatch(r"([^#]*)#([+-]?)([0-9]+)", sample.text)
    chain, _ = solve(prompt.text)
    parts = {"chain_true": float(sample.text.partition("#")[0] == chain)}
    if form is None:
        return Verdict(Outcome.malformed, subscores=parts)
    _, sign, digits = form.groups()
    # Compare as text: an answer of a million digits is then wrong at no cost.
    number = digits.lstrip("0") or "0"
    answer = f"-{number}" if sign == "-" and number != "0" else number
    return Verdict(
        Outcome.correct if answer == str(prompt.row["answer"]) else Outcome.wrong, subscores=parts, answer=answer
    )


def demonstrations(seed: int, n: int, chain_share: float) -> list[tuple[str, str]]:
    """`n` pairs of a problem that is not held out and its right answer; about `chain_share` of them show the steps.

    >>> demonstrations(seed=4, n=2, chain_share=0.5)
    [('2+8-6*4-4=', '2+8=10;10-6=4;4*4=16;16-4=12;#12'), ('4+2-3-2*9=', '#9')]
    """
    if not 0 <= chain_share <= 1:
        raise ValueError(f"chain_share is {chain_share}: it needs 0 <= chain_share <= 1")
    return list(islice(_demonstrations(Random(f"demonstrations {seed}"), chain_share), n))


def _demonstrations(random: Random, chain_share: float) -> Iterator[tuple[str, str]]:
    while True:
        operands = random.choice(OPERANDS)
        problem = numbered(random.randrange(how_many(operands)), operands)
        if not is_held_out(problem):
            chain, answer = solve(problem)
            yield problem, f"{chain if random.random() < chain_share else ''}#{answer}"


# Numbering

_FIRST = tuple((str(n), n) for n in range(1, 10))


def how_many(operands: int) -> int:
    """The number of problems with this many operands.

    >>> [how_many(n) for n in OPERANDS]
    [53122, 910780, 15438320]
    """
    return sum(_ways(first, operands - 1) for _, first in _FIRST)


def numbered(number: int, operands: int) -> str:
    """The problem with this number, in the order of all problems by first operand, sign (+ - *), next operand.

    >>> numbered(0, 4), numbered(53_121, 4)
    ('1+2+2+2=', '9*5-9-9=')
    """
    assert 0 <= number < how_many(operands), f"there is no problem {number} with {operands} operands"
    text, steps = "", _FIRST
    for left in reversed(range(operands)):
        for step, after in steps:
            ways = _ways(after, left)
            if number < ways:
                text, steps = text + step, _steps(after)
                break
            number -= ways
    return text + "="


@cache
def _ways(total: int, left: int) -> int:
    """The number of ways to continue from a running total with `left` more operands."""
    return 1 if left == 0 else sum(_ways(after, left - 1) for _, after in _steps(total))


@cache
def _steps(total: int) -> tuple[tuple[str, int], ...]:
    """The next steps from a running total to totals from 0 to `LARGEST`: the text of each step, and its new total."""
    steps = ((f"{sign}{n}", _apply(sign, total, n)) for sign in "+-*" for n in range(2, 10))
    return tuple((step, after) for step, after in steps if 0 <= after <= LARGEST)


def _apply(sign: str, total: int, operand: int) -> int:
    return {"+": total + operand, "-": total - operand, "*": total * operand}[sign]


def _problems(operands: int) -> Iterator[str]:
    return (shuffled_problem(i, operands) for i in count())


@cache
def _held_out() -> tuple[str, ...]:
    """The held-out problems, computed once per process."""
    streams = [filter(is_held_out, _problems(n)) for n in OPERANDS]
    return tuple(next(streams[i % len(streams)]) for i in range(HELD_OUT))


def shuffled_problem(i: int, operands: int) -> str:
    """The i-th problem with this many operands, in a fixed random order."""
    return numbered(_shuffled(i, how_many(operands)), operands)


def _shuffled(i: int, n: int) -> int:
    """The element `i` of a fixed random permutation of `range(n)`.

    Odd factors and xor-shifts permute the next power of two; a result outside of the range is permuted again.
    """
    bits = (n - 1).bit_length()
    while True:
        for factor in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35):
            i = i * factor + 0x27D4EB2F & (1 << bits) - 1
            i ^= i >> bits // 2
        if i < n:
            return i
