"""The verifier `Countdown`: an arithmetic expression over given numbers that equals a target."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from groupwise.data import Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have

__all__ = ["Countdown"]

LONGEST = 300
"""The most characters of an expression."""
DEEPEST = 100
"""An expression with more opening brackets than this is rejected before it is parsed."""

_WRITTEN = re.compile(r"[0-9+\-*/() ]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "\n": " ", "\t": " "})


class _Broken(Exception):
    """Internal exception: the text is not an expression of whole numbers and `+ - * /`."""


@verdicts_have()
@dataclass(frozen=True, slots=True)
class Countdown(VerifierSettings):
    """Right if the expression equals the target and uses each number once, or without `use_every_number` at most once.

    The expression is the content of the last `<answer>...</answer>`, else the last line that is not empty. After it,
    `= 13` may follow, also several times; each must be the target, else the answer is wrong. It is parsed and never
    executed: whole numbers, `+ - * /` and brackets, computed in fractions. An answer without such an expression is
    malformed.
    """

    gold_answer_format: ClassVar[str] = "numbers and a target"
    use_every_number: bool = True

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        gold = prompt.row["answer"]
        if not self.fits(gold):
            cause = f"the gold answer {str(gold)[:80]!r} is not numbers and a target"
            return Verdict(Outcome.unverifiable, cause=cause)
        numbers, target = gold["numbers"], gold["target"]
        try:
            expression, *results = extract_expression(sample.text).split("=")
            value, used = evaluate(expression.strip())
        except _Broken:
            return Verdict(Outcome.malformed)
        extra = Counter(used) - Counter(numbers)
        unused = Counter(numbers) - Counter(used)
        right = value == target and not extra and not (unused and self.use_every_number)
        right = right and all(_equals(result, target) for result in results)
        return Verdict(Outcome.correct if right else Outcome.wrong)

    def fits(self, gold: Any) -> bool:
        """Whether a gold answer has the form `{"numbers": [3, 7, 2], "target": 13}`."""
        if not isinstance(gold, dict) or not isinstance(gold.get("numbers"), list):
            return False
        return all(type(n) is int for n in (*gold["numbers"], gold.get("target")))


def extract_expression(text: str) -> str:
    """The expression in an answer's text, with the results that follow it.

    >>> extract_expression("<answer>3 * 2 + 7 = 13</answer>"), extract_expression("So:\\n(3 + 7) * 2")
    ('3 * 2 + 7 = 13', '(3 + 7) * 2')
    """
    start = text.rfind("<answer>")
    if start >= 0:
        expression = text[start + len("<answer>") :].partition("</answer>")[0]
    else:
        expression = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return expression.translate(_SIGNS).strip()


def _equals(result: str, target: int) -> bool:
    """Whether the text after `=` is the target, as a number or an expression. A full stop may end it."""
    result = result.strip().rstrip(".").rstrip()
    if len(result) <= LONGEST and _DECIMAL.fullmatch(result):
        return Fraction(result) == target
    try:
        return evaluate(result)[0] == target
    except _Broken:
        return False


def evaluate(expression: str) -> tuple[Fraction, list[int]]:
    """The value of an expression and its numbers. Raises `_Broken` if it is invalid, too long or divides by zero.

    >>> evaluate("(3 + 7) / 4")
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
