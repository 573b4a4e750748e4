"""What is asked of math-verify, in a process that is killed when a call takes too long. Run by path, never imported.

From `math` only plain expressions and equations come here, without prose and without what would be too large to
compute; lists, intervals, units and exact numbers were dealt with before. Decimals are written as fractions first:
math-verify rounds floating numbers, and near is not equal.
"""

import logging
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Verdict:
    """One part for each pair, by its place: 1 where its two sides are equal."""

    outcome: int = 0
    score: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    feedback: str = ""
    cause: str = ""


def equal(pairs: list[list[str]]) -> Verdict:
    return Verdict(parts={str(i): float(same(gold, answer)) for i, (gold, answer) in enumerate(pairs)})


def alone(answer: str, gold: str) -> bool:
    """What math-verify says by its own defaults."""
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    own: Any = {"parsing_timeout": None}  # it is outside that the clock runs; math-verify's types do not know None
    return bool(verify(parse(f"${gold}$", **own), parse(answer, **own), timeout_seconds=None))  # type: ignore[arg-type]


def same(gold: str, answer: str) -> bool:
    from math_verify import verify  # pyright: ignore[reportMissingImports]
    from sympy import Symbol
    from sympy.core.relational import Relational

    g, a = read(gold), read(answer)
    if g is None or a is None or isinstance(g, Relational) != isinstance(a, Relational):
        return False
    if isinstance(g, Symbol) or isinstance(a, Symbol):  # math-verify compares names without their case
        return g == a
    return bool(verify(g, a, timeout_seconds=None))  # type: ignore[arg-type]


def read(text: str) -> Any:
    """An expression or equation of sympy; None where it cannot be read as one, or not exactly."""
    from math_verify import LatexExtractionConfig, parse  # pyright: ignore[reportMissingImports]
    from sympy import Basic, FiniteSet, Float, MatrixBase, Tuple
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import Boolean

    exact = re.sub(r"(?<![\w.])(\d*)\.(\d+)(?![\w.])", fraction, text)
    found = parse(f"${exact}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    if len(found) != 1 or not isinstance(found[0], Basic | MatrixBase):
        return None
    value = found[0]
    if isinstance(value, FiniteSet | Tuple) or (isinstance(value, Boolean) and not isinstance(value, Relational)):
        return None
    return None if isinstance(value, Basic) and value.has(Float) else value


def fraction(found: "re.Match[str]") -> str:
    whole, digits = found.groups()
    return rf"\frac{{{int(whole + digits)}}}{{{10 ** len(digits)}}}"


if __name__ == "algebra":  # run by path: what every call needs is loaded before its time begins to count
    logging.disable(logging.CRITICAL)  # advice about timeouts: this process has its own
    equal([["x+1", "1+x"], [r"\sqrt{8}", r"2\sqrt{2}"], ["x=1", "2x=2"]])
