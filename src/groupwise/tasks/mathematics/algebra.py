"""What `math` asks of math-verify. Run in the sandbox, never imported.

From `math` only plain expressions and equations come here, without prose and without what would be too large to
compute; lists, intervals, units and exact numbers were dealt with before. Decimals are written as fractions first:
math-verify rounds floating numbers, and near is not equal.
"""

import logging
import re
from typing import Any


def equal(pairs: list[list[str]]) -> list[bool]:
    """For each pair of a gold answer and an answer, whether the two are equal."""
    return [same(gold, answer) for gold, answer in pairs]


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


WARM = [
    ["x+1", "1+x"],
    [r"\sqrt{8}", r"2\sqrt{2}"],
    ["x=1", "2x=2"],
    [r"\frac{x^2-1}{x-1}", "(x+1)^{2}"],
    [r"\sin\frac{\pi}{3}", r"\frac{\sqrt{3}}{2}"],
    [r"\ln 8+e^{2x}", r"3\cdot 2^{n-1}"],
    [r"\binom{8}{5}", "7i"],
]
"""Pairs whose grammar and functions every call finds loaded: an execution keeps nothing that it loads."""

if __name__ == "algebra":
    logging.disable(logging.CRITICAL)  # advice about timeouts
    equal(WARM)
