"""What an answer is made of: a value, a word, a list, a row of elements, an equation."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeGuard

from groupwise.tasks.mathematics.rational import rational
from groupwise.tasks.mathematics.tidy import split_top
from groupwise.tasks.mathematics.units import split_unit


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
        return self.sides[1:] if is_name(self.sides[0]) else self.sides


Read = Value | Word | Several | Row | Equation

_OR = re.compile(r"\s*(?:,\s*(?:and|or)\b|;|,|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|vee|cup)(?![A-Za-z]))\s*")
_IS = re.compile(r"(?<![<>!])=(?!=)")
_IN = re.compile(r"^\\?[A-Za-z]+\s*\\in(?![A-Za-z])\s*(?=[(\[\\])")
_ABOUT = re.compile(r"\\(?:approx|simeq|sim|cong)(?![A-Za-z])")
_ORDER = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_MATRIX = re.compile(r"\\begin\{(\w?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_NAME = re.compile(
    r"(?:\\[A-Za-z]+|[A-Za-z]+(?: [A-Za-z]+){0,2})(?:_(?:\w|\{[^{}]*\}))?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?"
)
_VALUE_NAMES = re.compile(r"\\(?:pi|infty|emptyset|reals|frac|sqrt)\b|(?:e|i)$")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")


def read(text: str) -> Read:
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
            return read(inner)
    if text == r"\emptyset":
        return Several(())
    parts = tuple(part.strip() for part in split_top(text, _OR) if part.strip())
    if len(parts) > 1:
        return Several(parts)
    sides = tuple(side.strip() for side in split_top(text, _IS))
    about = _ABOUT.split(sides[-1])
    if len(about) > 1:
        named = len(sides) == 1 and is_name(about[0].strip())
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
        if depth == 0 and i < end and text[i - 1] != "\\":
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
    if len(parts) == 3 and is_name(parts[1]):
        left, right = "[" if closed[0] else "(", "]" if closed[1] else ")"
        return Row(left + right, (parts[0], parts[2]), parts[1])
    if len(parts) == 2 and is_name(parts[0]):
        return Row("(]" if closed[0] else "()", (r"-\infty", parts[1]), parts[0])
    if len(parts) == 2 and is_name(parts[1]):
        return Row("[)" if closed[0] else "()", (parts[0], r"\infty"), parts[1])
    return None


def is_name(text: str) -> bool:
    """Whether this is what something is called, such as `x`, `f(x)`, `a_1`, `\\theta`, `m+n` or `(x,y)`."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    names = re.split("," if inner != text else "[-+]", inner)
    return len(names) <= 6 and all(_NAME.fullmatch(name) and not _VALUE_NAMES.match(name) for name in names)


def is_definition(read: Read) -> TypeGuard[Equation]:
    """Whether this gives a value a name: `x = 3`."""
    return isinstance(read, Equation) and len(read.sides) == 2 and is_name(read.sides[0])
