"""Whether two answers are the same, as far as text, exact numbers and structure tell; the rest is left to algebra."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from groupwise.tasks.rational import rational
from groupwise.tasks.tidy import split_top, tidy
from groupwise.tasks.units import split_unit

Algebra = Callable[[str, str], bool | None]
"""Whether two expressions are equal; None where it does not say."""

MOST = 12
"""Elements of the largest list that is compared in any order."""


def same(gold: str, answer: str, algebra: Algebra = lambda gold, answer: None) -> bool | None:
    """Whether an answer says what the gold answer says; None where only algebra could tell, and it does not.

    Equal, not near: `0.33` is not `1/3`. A unit or per cent sign that one of the two leaves out is forgiven, a different
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
    g, a = _read(gold), _read(answer)
    if isinstance(a, Equation) and not (isinstance(g, Equation) and len(g.sides) == len(a.sides) == 2):
        return _every(_compared(g.sides[-1] if _named(g) else gold, side, algebra) for side in a.of_interest)
    if isinstance(g, Equation) and isinstance(a, Equation):
        return _equations(g, a, algebra)
    if isinstance(g, Equation):
        return _compared(g.sides[1], answer, algebra) if _named(g) else False
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


# What an answer is made of


@dataclass(frozen=True, slots=True)
class Value:
    """A number or an expression, with its unit."""

    text: str
    number: Fraction | None
    unit: str


@dataclass(frozen=True, slots=True)
class Word:
    """A name or a statement, letters alone; in lower case unless it is one letter."""

    text: str


@dataclass(frozen=True, slots=True)
class Several:
    """A list, a set, a union, both signs: elements in any order."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A tuple, an interval or a matrix: its brackets (and widths) as `kind`, elements in order.

    An inequality is an interval `of` its variable.
    """

    kind: str
    items: tuple[str, ...]
    of: str = ""


@dataclass(frozen=True, slots=True)
class Equation:
    """Two sides or more."""

    sides: tuple[str, ...]

    @property
    def of_interest(self) -> tuple[str, ...]:
        """The sides that claim a value: a name in front is no claim."""
        return self.sides[1:] if _is_name(self.sides[0]) else self.sides


Read = Value | Word | Several | Row | Equation

_OR = re.compile(r"\s*(?:,\s*(?:and|or)\b|;|,|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|vee|cup)(?![A-Za-z]))\s*")
_IS = re.compile(r"(?<![<>!])=(?!=)")
_IN = re.compile(r"^\\?[A-Za-z]+\s*\\in(?![A-Za-z])\s*(?=[(\[\\])")
_ABOUT = re.compile(r"\\(?:approx|simeq|sim|cong)(?![A-Za-z])")
_ORDER = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_MATRIX = re.compile(r"\\begin\{(\w?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_NAME = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z]+(?: [A-Za-z]+){0,2})(?:_(?:\w|\{[^{}]*\}))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?")
_VALUE_NAMES = re.compile(r"\\(?:pi|infty|emptyset|reals|frac|sqrt)\b|(?:e|i)$")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")


def _read(text: str) -> Read:
    """A tidy answer as one of the kinds above."""
    text = _IN.sub("", text)
    if matrix := _MATRIX.fullmatch(text):
        return _matrix(*matrix.groups())
    if (inner := _inside(text)) is not None:
        left, right = _edges(text)
        items = tuple(part.strip() for part in split_top(inner, re.compile("[,;]")))
        if left == r"\{":
            return Several(() if not inner.strip() else tuple(part.strip() for part in split_top(inner, _OR)))
        if len(items) > 1:
            return Row(left + right, items)
        if left == "(" and right == ")":
            return _read(inner)
    if text == r"\emptyset":
        return Several(())
    parts = tuple(part.strip() for part in split_top(text, _OR) if part.strip())
    if len(parts) > 1:
        return Several(parts)
    sides = tuple(side.strip() for side in split_top(text, _IS))
    about = _ABOUT.split(sides[-1])
    if len(about) > 1:
        named = len(sides) == 1 and _is_name(about[0].strip())
        sides = (about[0].strip(), about[1].strip()) if named else (*sides[:-1], about[0].strip())
        text = "=".join(sides)
    if len(sides) > 1 and all(sides):
        return Equation(sides)
    if interval := _inequality(text):
        return interval
    if (signs := text.count(r"\pm")) == 1:
        left, right = (part.strip() for part in text.split(r"\pm"))
        return Several((f"{left}+{right}" if left else right, f"{left}-({right})"))
    value, unit = split_unit(text) if signs == 0 else (text, "")
    if value != text and (inner := _inside(value)) is not None and value.startswith("("):
        value = inner
    number = rational(value)
    if number is None and len(value) > 1 and _WORDS.fullmatch(value):
        return Word(value.lower())
    return Word(value) if re.fullmatch("[A-Za-z]", value) and not unit else Value(value, number, unit)


def _inside(text: str) -> str | None:
    """What stands between brackets that open at the start and close at the end."""
    left, right = _edges(text)
    if not left or not right or len(text) < len(left) + len(right):
        return None
    depth = 0
    i, end = 0, len(text)
    while i < end:
        if text[i] == "\\" and text[i + 1 : i + 2] not in ("{", "}"):
            i += 1 if text[i + 1 : i + 2].isalpha() else 2
            continue
        depth += (text[i] in "([{") - (text[i] in ")]}")
        i += 1
        if depth == 0 and i < end and not (text[i - 1] == "\\"):
            return None if text[i - 1] in ")]}" else text[len(left) : -len(right)]
    return text[len(left) : -len(right)] if depth == 0 else None


def _edges(text: str) -> tuple[str, str]:
    left = next((x for x in (r"\{", r"\langle", "(", "[") if text.startswith(x)), "")
    right = next((x for x in (r"\}", r"\rangle", ")", "]") if text.endswith(x)), "")
    return (left, right) if (left == r"\{") == (right == r"\}") else ("", "")


def _matrix(kind: str, body: str) -> Row:
    """Rows of a matrix one after the other; only bars (a determinant, a norm) make another kind of the same numbers."""
    rows = [row.split("&") for row in re.split(r"\\\\", body.strip().removesuffix(r"\\"))]
    shape = "x".join(str(len(row)) for row in rows)
    bars = kind[0] if kind in ("vmatrix", "Vmatrix") else ""
    return Row(f"{bars}matrix {shape}", tuple(x.strip() for row in rows for x in row))


def _inequality(text: str) -> Row | None:
    """`x < 3`, `3 > x`, `1 < x <= 3` as intervals of x."""
    signs, parts = _ORDER.findall(text), [p.strip() for p in _ORDER.split(text)]
    if not signs or len(signs) > 2 or not all(parts):
        return None
    upward = [sign in ("<", r"\le") for sign in signs]
    closed = ["le" in sign or "ge" in sign for sign in signs]
    if not all(upward):
        if any(upward):
            return None
        parts, closed = parts[::-1], closed[::-1]
    if len(parts) == 3 and _is_name(parts[1]):
        left, right = "[" if closed[0] else "(", "]" if closed[1] else ")"
        return Row(left + right, (parts[0], parts[2]), parts[1])
    if len(parts) == 2 and _is_name(parts[0]):
        return Row("(]" if closed[0] else "()", (r"-\infty", parts[1]), parts[0])
    if len(parts) == 2 and _is_name(parts[1]):
        return Row("[)" if closed[0] else "()", (parts[0], r"\infty"), parts[1])
    return None


def _is_name(text: str) -> bool:
    """Whether this is what something is called, such as `x`, `f(x)`, `a_1`, `\\theta`, `m+n` or `(x,y)`."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    names = re.split("," if inner != text else "[-+]", inner)
    return len(names) <= 6 and all(_NAME.fullmatch(name) and not _VALUE_NAMES.match(name) for name in names)


def _named(read: Read) -> bool:
    """Whether this gives a value a name: `x = 3`."""
    return isinstance(read, Equation) and len(read.sides) == 2 and _is_name(read.sides[0])


# How they are compared


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
    if _is_name(g) and _is_name(a):
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
