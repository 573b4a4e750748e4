"""The values of two expressions at one point, with the precision that their numbers need. Runs in the sandbox."""

from fractions import Fraction
from random import Random
from typing import Any

from mpmath import mp  # pyright: ignore[reportMissingImports]

from groupwise.verifiers.math.expression_trees import FUNCTIONS, OPERATIONS, Tree, names_of, rational

DIGITS = 60
"""The least number of decimal digits to which two values must agree; it grows with the size of their numbers."""
MOST_DIGITS = 3000
"""The highest precision of a computation, in digits."""


def values_at(trees: tuple[Tree, Tree], point: dict[str, Fraction]) -> tuple[Any, Any, Any, float] | None:
    """The values of two expressions at a point, with their tolerance and sizes; None if a value is too large.

    The sizes of all numbers, powers and function values in the trees set the precision, so that a term such as
    `10^{-70}` or `e^{-100}` makes a difference.
    """
    try:
        with mp.workdps(30):
            size = sum(_Evaluation(point).size_of(tree) for tree in trees)
        digits = DIGITS + 30 + 4 * size
        if not digits < MOST_DIGITS:
            return None
        with mp.workdps(int(digits)):
            evaluation = _Evaluation(point)
            g, a = (evaluation.outcome(tree) for tree in trees)
            largest = max(abs(value) for value in (g, a, 1) if value is not None)
            return g, a, largest * mp.mpf(10) ** -(DIGITS + 2 * size), size
    except _TooLarge:
        return None


class _Evaluation:
    """Evaluates expressions at a point with the current precision; equal subexpressions are computed once."""

    def __init__(self, point: dict[str, Fraction]) -> None:
        self.point = {name: mp.mpf(x.numerator) / x.denominator for name, x in point.items()}
        self.size = 0.0
        self.cache: dict[Tree, Any] = {}

    def size_of(self, tree: Tree) -> float:
        self.outcome(tree)
        return self.size

    def outcome(self, tree: Tree) -> Any:
        """The value of an expression; None if it is undefined."""
        try:
            value = self.value(tree)
            return value if mp.isfinite(value) else None
        except (ValueError, ZeroDivisionError, OverflowError, mp.NoConvergence):
            return None

    def value(self, tree: Tree) -> Any:
        if tree not in self.cache:
            self.cache[tree] = self.compute(tree)
        return self.cache[tree]

    def compute(self, tree: Tree) -> Any:
        kind, *parts = tree
        if kind == "number":
            self.size += sum(float(mp.log10(part)) for part in parts[0].as_integer_ratio() if part > 1)
            return mp.mpf(parts[0].numerator) / parts[0].denominator
        if kind == "name":
            return self.point[parts[0]]
        if kind in ("e", "pi", "i"):
            return mp.mpc(0, 1) if kind == "i" else +getattr(mp, kind)
        name = parts.pop(0) if kind in ("call", "apply") else ""
        values = [self.value(part) for part in parts]
        x, y = values[0], values[-1]
        if kind in OPERATIONS:
            return OPERATIONS[kind](x, y)
        if kind in ("abs", "conjugate"):
            return abs(x) if kind == "abs" else mp.conj(x)
        if kind == "apply" or (kind in ("floor", "ceil") and names_of(tree)):
            return _opaque(name or kind, values)
        if any(mp.mag(value) > 400 for value in values if value):
            raise _TooLarge
        if kind in ("floor", "ceil"):
            if abs(x - mp.nint(mp.re(x))) < mp.mpf(10) ** -20 and rational(parts[0]) is None:
                raise _TooLarge
            return getattr(mp, kind)(x)
        if kind == "^":
            value = _power(x, y, rational(parts[1]))
        elif kind == "call":
            if name in ("exp", "sinh", "cosh", "tanh"):
                self.size += _bounded(abs(x) / 2)
            value = getattr(mp, FUNCTIONS[name])(x)
            self.size += _log10(x)
        else:
            if max(abs(x), abs(y)) > (1000 if mp.isint(x) and mp.isint(y) else 20):
                raise _TooLarge
            value = mp.factorial(x) if kind == "!" else mp.binomial(x, y)
        self.size += _log10(value)
        return value


def _power(base: Any, exponent: Any, rational: Fraction | None) -> Any:
    """The principal value of a power, except that odd roots of negative numbers are real."""
    if rational is not None and rational.denominator == 1:
        exponent = int(rational)
    if base:
        _bounded(abs(exponent * mp.log(abs(base))))
    if (
        rational is not None
        and rational.denominator % 2
        and rational.denominator > 1
        and mp.im(base) == 0 > mp.re(base)
    ):
        return (-1) ** (rational.numerator % 2) * mp.power(-mp.re(base), exponent)
    return mp.power(base, exponent)


class _TooLarge(Exception):
    """Internal exception: a value is too large to compute."""


def _bounded(size: Any) -> float:
    if size > 10 * MOST_DIGITS:
        raise _TooLarge
    return float(size)


def _log10(value: Any) -> float:
    """Approximately `|log10(|value|)|`: the number of digits before the decimal point, or of zeros after it."""
    return abs(mp.mag(value)) * 0.302 if value else 0.0


def _opaque(name: str, values: list[Any]) -> Any:
    """A pseudo-random value that depends on a function's name and arguments: `f(x)` has no known value."""
    near = [int(mp.nint(part * mp.mpf(10) ** 20 + mp.pi)) for value in values for part in (mp.re(value), mp.im(value))]
    return mp.mpf(Random(f"{name} {near}").randrange(1, 1 << 60)) / (1 << 59)
