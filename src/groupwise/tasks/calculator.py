"""The task `calculator`: short sums worked from left to right, answered by a chain of steps or by a guess.

There are 16,402,222 problems (53,122 with four operands, 910,780 with five, 15,438,320 with six). They are numbered,
not listed; each number of operands is met equally often, or nearly all problems would have six.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import count, islice
from random import Random

from groupwise.data import Ids, Outcome, Prompt, Sample, Verdict

__all__ = ["Calculator", "calculator_answer", "demonstrations"]

OPERANDS = (4, 5, 6)
LARGEST = 49
TRAINING = 16_384
HELD_OUT = 512
WINDOW = 8


def worked(problem: str) -> tuple[str, int]:
    """The chain of single steps and the result.

    >>> worked("7*5+8-9+3=")
    ('7*5=35;35+8=43;43-9=34;34+3=37;', 37)
    """
    total, chain = int(problem[0]), ""
    for sign, operand in zip(problem[1:-1:2], problem[2:-1:2], strict=True):
        after = _apply(sign, total, int(operand))
        chain, total = f"{chain}{total}{sign}{operand}={after};", after
    return chain, total


def is_held_out(problem: str) -> bool:
    """Whether a problem is in the tenth that nothing is ever trained on: the first 8 bytes of its SHA-256, modulo 10.

    >>> is_held_out("7*5+8-9+3=")
    False
    """
    return int.from_bytes(sha256(problem.encode()).digest()[:8]) % 10 == 0


@dataclass(frozen=True, slots=True)
class Calculator:
    """16,384 different problems to train on, and 512 of the held-out tenth; 4, 5 and 6 operands in turn in both.

    >>> task = Calculator(encode=lambda text: tuple(map(ord, text)))
    >>> task[0].text, task[0].given["answer"], len(task), len(task.held_out)
    ('7+2+4+2=', 15, 16384, 512)
    """

    encode: Callable[[str], Ids]
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        streams = [filter(is_held_out, _problems(n)) for n in OPERANDS]
        held_out = tuple(self._prompt(next(streams[i % len(streams)])) for i in range(HELD_OUT))
        object.__setattr__(self, "held_out", held_out)

    def __len__(self) -> int:
        return TRAINING

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < TRAINING:
            raise IndexError(f"problem {index} of {TRAINING}")
        place, turn = divmod(index, len(OPERANDS))
        # A window of problems belongs to each index, so problems differ without a list of them being made;
        # that each window holds a problem to train on is a fact about these constants, and tested.
        window = range(place * WINDOW, (place + 1) * WINDOW)
        return self._prompt(next(p for i in window if not is_held_out(p := _problem(i, OPERANDS[turn]))))

    def _prompt(self, problem: str) -> Prompt:
        return Prompt(id=problem, context=self.encode(problem), text=problem, given={"answer": worked(problem)[1]})


async def calculator_answer(prompt: Prompt, sample: Sample) -> Verdict:
    """Right if the answer ends in its only `#` and the result; without one `#` and an integer at the end, malformed.

    Only the result is graded. The part `chain_true` is 1 where all steps of the problem stand before the `#` and are
    true, and 0 otherwise, so for a bare guess.
    """
    form = re.fullmatch(r"([^#]*)#([+-]?)([0-9]+)", sample.text)
    chain, _ = worked(prompt.text)
    parts = {"chain_true": float(sample.text.partition("#")[0] == chain)}
    if form is None:
        return Verdict(Outcome.malformed, parts=parts)
    _, sign, digits = form.groups()
    # Compared as text: an answer of a million digits is merely wrong.
    size = digits.lstrip("0") or "0"
    said = f"-{size}" if sign == "-" and size != "0" else size
    return Verdict(Outcome.correct if said == str(prompt.given["answer"]) else Outcome.wrong, parts=parts, answer=said)


def demonstrations(seed: int, n: int, chain_share: float) -> list[tuple[str, str]]:
    """`n` pairs of problem and right answer, none held out: about `chain_share` write the chain, the others only guess.

    >>> demonstrations(seed=4, n=2, chain_share=0.5)
    [('2+8-6*4-4=', '2+8=10;10-6=4;4*4=16;16-4=12;#12'), ('4+2-3-2*9=', '#9')]
    """
    if not 0 <= chain_share <= 1:
        raise ValueError(f"chain_share is {chain_share}: a share lies between 0 and 1")
    return list(islice(_demonstrations(Random(f"demonstrations {seed}"), chain_share), n))


def _demonstrations(random: Random, chain_share: float) -> Iterator[tuple[str, str]]:
    while True:
        operands = random.choice(OPERANDS)
        problem = numbered(random.randrange(how_many(operands)), operands)
        if not is_held_out(problem):
            chain, answer = worked(problem)
            yield problem, f"{chain if random.random() < chain_share else ''}#{answer}"


# Numbering

_FIRST = tuple((str(n), n) for n in range(1, 10))


def how_many(operands: int) -> int:
    """Problems with so many operands.

    >>> [how_many(n) for n in OPERANDS]
    [53122, 910780, 15438320]
    """
    return sum(_ways(first, operands - 1) for _, first in _FIRST)


def numbered(number: int, operands: int) -> str:
    """The problem of that number, in the order of first operand, sign (+ - *) and next operand.

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
    """In how many ways a running total can go on for `left` operands."""
    return 1 if left == 0 else sum(_ways(after, left - 1) for _, after in _steps(total))


@cache
def _steps(total: int) -> tuple[tuple[str, int], ...]:
    """The legal steps from a running total, as written, and where they lead."""
    steps = ((f"{sign}{n}", _apply(sign, total, n)) for sign in "+-*" for n in range(2, 10))
    return tuple((step, after) for step, after in steps if 0 <= after <= LARGEST)


def _apply(sign: str, total: int, operand: int) -> int:
    return {"+": total + operand, "-": total - operand, "*": total * operand}[sign]


def _problems(operands: int) -> Iterator[str]:
    return (_problem(i, operands) for i in count())


def _problem(i: int, operands: int) -> str:
    """The i-th problem in a fixed shuffled order."""
    return numbered(_shuffled(i, how_many(operands)), operands)


def _shuffled(i: int, n: int) -> int:
    """A fixed permutation of range(n): odd factors and shifts permute a power of two; what falls outside goes again."""
    bits = (n - 1).bit_length()
    while True:
        for factor in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35):
            i = i * factor + 0x27D4EB2F & (1 << bits) - 1
            i ^= i >> bits // 2
        if i < n:
            return i
