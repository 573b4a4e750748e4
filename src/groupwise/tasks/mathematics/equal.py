"""Whether two answers are the same, as far as text, exact numbers and structure tell; the rest is left to algebra."""

import re
from collections.abc import Callable, Iterable, Sequence

from groupwise.tasks.mathematics.structure import Equation, Row, Several, Value, Word, is_definition, is_name, read
from groupwise.tasks.mathematics.tidy import tidy

Algebra = Callable[[str, str], bool | None]
"""Whether two expressions are equal; None where it does not say."""

MOST = 12
"""Elements of the largest list that is compared in any order."""


def same(gold: str, answer: str, algebra: Algebra = lambda gold, answer: None) -> bool | None:
    """Whether an answer says what the gold answer says; None where only algebra could tell, and it does not.

    Equal, not near: `0.33` is not `1/3`. A unit or per cent sign that one of the two leaves out is forgiven, another
    one is not. Lists and sets are compared in any order, tuples, intervals and matrices in theirs. In a chain of
    equations every member must be the gold answer.

    >>> same("1/2", r"\\frac{2}{4}"), same("3, -3", r"x = \\pm 3"), same("(1,2]", "[1,2)"), same("12 cm", "12 m")
    (True, True, False, False)
    >>> same(r"\\sqrt{8}", r"2\\sqrt{2}") is None
    True
    """
    return _compared(tidy(gold), tidy(answer), algebra)


def _compared(gold: str, answer: str, algebra: Algebra) -> bool | None:
    if gold == answer:
        return bool(gold)
    if not gold or not answer:
        return False
    g, a = read(gold), read(answer)
    if isinstance(a, Equation) and not (isinstance(g, Equation) and len(g.sides) == len(a.sides) == 2):
        return _every(_compared(g.sides[-1] if is_definition(g) else gold, side, algebra) for side in a.of_interest)
    if isinstance(g, Equation) and isinstance(a, Equation):
        return _equations(g, a, algebra)
    if isinstance(g, Equation):
        return _compared(g.sides[1], answer, algebra) if is_definition(g) else False
    if isinstance(g, Value) and isinstance(a, Value):
        return _values(g, a, algebra)
    if isinstance(g, Word) and isinstance(a, Word):
        return g.text == a.text
    if isinstance(g, Several) and isinstance(a, Several):
        return _in_any_order(g.items, a.items, algebra)
    if isinstance(g, Row) and isinstance(a, Row):
        if (g.kind, len(g.items)) != (a.kind, len(a.items)) or (g.of and a.of and g.of != a.of):
            return False
        return _every(_compared(x, y, algebra) for x, y in zip(g.items, a.items, strict=True))
    return False


def _values(gold: Value, answer: Value, algebra: Algebra) -> bool | None:
    units = {gold.unit, answer.unit} - {""}
    if len(units) > 1:
        return False
    if gold.text == answer.text:
        return True
    if gold.number is not None and answer.number is not None:
        g, a = gold.number, answer.number
        if g != a and "%" in units and gold.unit != answer.unit:
            g, a = (g / 100 if gold.unit else g), (a / 100 if answer.unit else a)
        return g == a
    infinite = [re.fullmatch(r"[-+]?\\infty", v.text) for v in (gold, answer)]
    if any(infinite):
        return all(infinite) and gold.text.lstrip("+") == answer.text.lstrip("+")
    return algebra(gold.text, answer.text)


def _equations(gold: Equation, answer: Equation, algebra: Algebra) -> bool | None:
    (g, gold_value), (a, value) = gold.sides, answer.sides
    if is_name(g) and is_name(a):
        return _compared(gold_value, value, algebra) if g == a else False
    return algebra(f"{g}={gold_value}", f"{a}={value}")


def _in_any_order(gold: Sequence[str], answer: Sequence[str], algebra: Algebra) -> bool | None:
    if len(gold) != len(answer) or len(gold) > MOST:
        return False
    table = [[_compared(g, a, algebra) for a in answer] for g in gold]
    if not all(any(cell is not False for cell in line) for line in (*table, *zip(*table, strict=True))):
        return False
    left = list(range(len(answer)))
    for line in table:  # equality is transitive, so the first that fits may be taken
        found = next((j for j in left if line[j]), None)
        if found is None:
            return None if any(cell is None for row in table for cell in row) else False
        left.remove(found)
    return True


def _every(decisions: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is, else True."""
    seen = list(decisions)
    return False if False in seen else None if None in seen else True
