"""The verifier of `countdown`: an expression over given numbers that makes a given one."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict

__all__ = ["Countdown"]

LONGEST = 300
"""Characters of the longest expression that is read."""
DEEPEST = 100
"""Brackets of the longest expression: deeper ones are refused before they are parsed."""

_WRITTEN = re.compile(r"[0-9+\-*/() ]+")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "\n": " ", "\t": " "})


class _Broken(Exception):
    """Not an expression of whole numbers and the four signs."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """Right if the expression makes the target, exactly, from each number once (`every=False`: at most once).

    The expression is what stands in the last `<answer>...</answer>`, else the last line that is not empty; a closing
    `= 13` may follow. It is parsed, never run: whole numbers, `+ - * /` and brackets, computed in fractions.
    An answer in which no such expression stands is malformed.
    """

    expects: ClassVar[str] = "numbers and a target"
    every: bool = True

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        gold = prompt.given["answer"]
        if not self.fits(gold):
            cause = f"the gold answer {str(gold)[:80]!r} is not numbers and a target"
            return Verdict(Outcome.unverifiable, cause=cause)
        numbers, target = gold["numbers"], gold["target"]
        try:
            value, used = evaluated(said(sample.text))
        except _Broken:
            return Verdict(Outcome.malformed)
        over = Counter(used) - Counter(numbers)
        left = Counter(numbers) - Counter(used)
        right = value == target and not over and not (left and self.every)
        return Verdict(Outcome.correct if right else Outcome.wrong)

    def fits(self, gold: Any) -> bool:
        """Whether a gold answer is `{"numbers": [3, 7, 2], "target": 13}`."""
        if not isinstance(gold, dict) or not isinstance(gold.get("numbers"), list):
            return False
        return all(type(n) is int for n in (*gold["numbers"], gold.get("target")))


def said(text: str) -> str:
    """The expression that an answer gives.

    >>> said("<think>3*7</think> <answer>3 * 2 + 7 = 13</answer>"), said("So:\\n(3 + 7) * 2")
    ('3 * 2 + 7', '(3 + 7) * 2')
    """
    opened = text.rfind("<answer>")
    if opened >= 0:
        inside = text[opened + len("<answer>") :].partition("</answer>")[0]
    else:
        inside = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return inside.translate(_SIGNS).partition("=")[0].strip()


def evaluated(expression: str) -> tuple[Fraction, list[int]]:
    """Its value and the numbers it uses. Raises for anything but whole numbers, the four signs and brackets.

    >>> evaluated("(3 + 7) / 4")
    (Fraction(5, 2), [3, 7, 4])
    """
    signs = ("**", "//")
    if not _WRITTEN.fullmatch(expression) or len(expression) > LONGEST or any(s in expression for s in signs):
        raise _Broken
    if expression.count("(") > DEEPEST:
        raise _Broken
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _Broken from None
    used: list[int] = []
    return _value(tree.body, used), used


def _value(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            used.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, used)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return _value(inner, used)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, used), _value(right, used)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div() if b:
                    return a / b
    raise _Broken
