"""The verifiers `Exact` and `LastNumber`. They are fast and never raise."""

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have

__all__ = ["Exact", "LastNumber"]

LONGEST = 400
"""The most characters of a number, and the largest exponent; anything beyond is wrong without a comparison."""

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9.])\.[0-9]+"
_POWER = r"(?:[eE][-+]?[0-9]+(?![0-9a-zA-Z]))?"
# A minus behind a digit, letter or closing bracket is a subtraction; elsewhere it is a sign.
_NUMBER = re.compile(rf"((?:(?<![\w)\]}}.])[-−+])?)\$?((?:{_DIGITS}){_POWER})(?:/((?:{_DIGITS})))?")


@verdicts_have()
@dataclass(frozen=True, slots=True)
class Exact(VerifierSettings):
    """Right if the whole text equals the gold answer, with runs of white space as one space. Malformed if empty."""

    gold_answer_format: ClassVar[str] = "text or a number"

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        text = " ".join(sample.text.split())
        if not text:
            return Verdict(Outcome.malformed)
        gold = prompt.row["answer"]
        if not self.fits(gold):
            return _no_gold(gold, self.gold_answer_format)
        return Verdict(Outcome.correct if text == " ".join(str(gold).split()) else Outcome.wrong, answer=text)

    def fits(self, gold: Any) -> bool:
        """Whether a gold answer can be compared as text."""
        return isinstance(gold, str | int | float) and not isinstance(gold, bool)


@verdicts_have()
@dataclass(frozen=True, slots=True)
class LastNumber(VerifierSettings):
    """Right if the last number in the answer equals the gold number exactly; malformed if there is no number.

    Accepts common spellings: `1,234.50`, `-$5`, `034`, `18.`, `**34**`, `1/2`, `6e3`, `−3`. Limits: of several numbers
    it takes the last (`x=3 or x=-3` is -3), and it ignores units, per cent and rounding (`0.33` is not 1/3).
    """

    gold_answer_format: ClassVar[str] = "a number"

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        gold = as_number(prompt.row["answer"])
        if gold is None:
            return _no_gold(prompt.row["answer"], self.gold_answer_format)
        matches = deque(_NUMBER.finditer(sample.text), maxlen=1)
        if not matches:
            return Verdict(Outcome.malformed)
        value = _value(matches[0])
        answer = matches[0][0] if value is None else str(value)
        return Verdict(Outcome.correct if value == gold else Outcome.wrong, answer=answer)

    def fits(self, gold: Any) -> bool:
        """Whether a gold answer can be compared as a number."""
        return as_number(gold) is not None


def as_number(gold: Any) -> Fraction | None:
    """A gold answer as an exact number; None if it is not a number.

    >>> as_number("1,234.5"), as_number(0.1), as_number("about 5")
    (Fraction(2469, 2), Fraction(1, 10), None)
    """
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        return None
    match = _NUMBER.fullmatch(str(gold).strip().removesuffix("."))
    return _value(match) if match else None


def _value(number: re.Match[str]) -> Fraction | None:
    """The value of a matched number; None if it is too long to compare, or divided by zero."""
    sign, above, below = number.groups()
    if len(number[0]) > LONGEST:
        return None
    power = re.split("[eE]", above)
    if len(power) == 2 and abs(int(power[1])) > LONGEST:
        return None
    value = Fraction(above.replace(",", ""))
    if below is not None:
        divisor = Fraction(below.replace(",", ""))
        if divisor == 0:
            return None
        value /= divisor
    return value if sign in ("", "+") else -value


def _no_gold(gold: Any, expected: str) -> Verdict:
    return Verdict(Outcome.unverifiable, cause=f"the gold answer {str(gold)[:80]!r} is not {expected}")
