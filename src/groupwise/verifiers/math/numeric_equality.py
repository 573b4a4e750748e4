"""Equality of two expressions by their values at many sample points. Runs in the sandbox, never imported.

The verifier `math` sends only plain expressions and equations: it compares lists, intervals, units and exact numbers
itself. latex_parser.py parses each to a tree; values.py computes the value of a tree at a point. Two trees are equal if
their values agree at every sample point, to 60 digits more than the numbers in them can express.
"""

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Any

from mpmath import mp  # pyright: ignore[reportMissingImports]

from groupwise.verifiers.math.expression_trees import BASE, Tree, UnknownSymbol, has, has_kink, names_of
from groupwise.verifiers.math.latex_parser import parse
from groupwise.verifiers.math.noncommuting_products import refuse_unordered
from groupwise.verifiers.math.values_at_point import MOST_DIGITS, values_at

SCALES = ("0.4", "1.5", "3", "0.1", "7", "0.7", "20", "2", "100", "0.3", "5", "1000")
"""The sizes of most sample points. Others are far larger, or far smaller, than the numbers in the expressions."""
ENOUGH = 4
"""The fewest sample points at which two expressions with variables must have equal values."""


def equal(pairs: list[list[str]]) -> list[bool]:
    """For each pair of a gold answer and an answer, whether they are mathematically equal."""
    return [same(gold, answer) for gold, answer in pairs]


def same(gold: str, answer: str) -> bool:
    r"""Whether two expressions, or two equations, are equal. False also if the parser rejects one of them.

    >>> same(r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt2}{2}"), same("x+X", "2x"), same("2x+3y=6", "y=2-\\frac{2}{3}x")
    (True, False, True)
    """
    if gold.count("=") != answer.count("=") or gold.count("=") > 1:
        return False
    try:
        g, a = (tuple(parse(side) for side in text.split("=")) for text in (gold, answer))
        for pair in zip(g, a, strict=True):
            refuse_unordered(*pair)
        return _agree(g[0], a[0]) if len(g) == 1 else _agree(("-", *g), ("-", *a), proportional=True)
    except (UnknownSymbol, RecursionError):
        return False


def _agree(gold: Tree, answer: Tree, proportional: bool = False) -> bool:
    r"""Whether two expressions have equal values at every sample point, or with `proportional` the same ratio.

    Names are real. If only one of the two values is real (or defined) at a point, the trees differ. If neither is,
    such as `\sqrt{x}` below 0, a difference counts only if the text contains `i`.
    """
    names = sorted(names_of(gold) | names_of(answer))
    if (proportional and not (names_of(gold) and names_of(answer))) or len(names) > 12:
        return False
    complex_too = proportional or not names or has(gold, "i") or has(answer, "i")
    kinks = has_kink(gold) or has_kink(answer)
    first: tuple[Any, ...] = ()
    compared = farthest = 0
    for far, point in _points(names, kinks, (gold, answer)):
        values = values_at((gold, answer), point)
        if values is None:
            continue
        g, a, tolerance, _ = values
        if g is None or a is None:
            if g is not a:
                return False
            continue
        with mp.workdps(MOST_DIGITS):
            if proportional:
                if abs(g) <= tolerance or abs(a) <= tolerance:
                    return False
                first = first or values
                g, tolerance = g * first[1] / first[0], max(tolerance, first[2] * max(1, abs(a)))
            real = [abs(mp.im(value)) <= tolerance for value in (g, a)]
            if (not complex_too and real[0] != real[1]) or (abs(g - a) > tolerance and (complex_too or real[0])):
                return False
            agree = abs(g - a) <= tolerance
        compared, farthest = compared + agree, farthest + (agree and far)
    return compared >= (ENOUGH if names else 1) and (not names or not kinks or farthest >= ENOUGH)


def _points(names: list[str], kinks: bool, trees: tuple[Tree, Tree]) -> Iterator[tuple[bool, dict[str, Fraction]]]:
    """Sample points: values for the names. The flag marks points larger than all numbers in the expressions."""
    if not names:
        yield False, {}
        return
    values = values_at(trees, dict.fromkeys(names, Fraction(1, 3)))
    beyond = 10 ** int(min(values[3] + 2, 110) if values else 110)
    near = [(False, scale, 0) for scale in (Fraction(1, beyond), *map(Fraction, SCALES)) * (5 if kinks else 1)]
    far = [(True, Fraction(beyond), sign) for sign in (1, -1, 0, 0, 0, 0)]
    random = Random(0)
    for is_far, scale, sign in near + far:
        point = {name: Fraction(random.randrange(1, 1 << 60), 1 << 59) * scale for name in names}
        signs = {name: sign or random.choice((1, -1)) for name in names} | {BASE: 1}
        yield is_far, {name: x * signs[name] for name, x in point.items()}


def warm_up() -> None:
    """Lets mpmath compute its constants once, before the first call."""
    equal([["x+1", "1+x"], [r"\sin 1+\ln 2+e^{2}", r"\sqrt{8}+\pi"], ["x=1", "2x=2"]])
