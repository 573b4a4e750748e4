"""Parses an answer's structure: a value, a word, a list, a row of elements, or an equation."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeGuard

from groupwise.verifiers.math.compound_quantities import CompoundQuantity, quantity
from groupwise.verifiers.math.exact_rationals import rational
from groupwise.verifiers.math.inequalities import inequality, without_bars
from groupwise.verifiers.math.normalise_answer import at_top, split_top
from groupwise.verifiers.math.number_sets import condition, parts_around
from groupwise.verifiers.math.number_words import in_base, spelled
from groupwise.verifiers.math.read_matrices import determinant, matrix
from groupwise.verifiers.math.thousands_separators import INDIAN
from groupwise.verifiers.math.unicode_to_latex import GREEK
from groupwise.verifiers.math.units import CHANGES_A_NUMBER, split_unit, words


@dataclass(frozen=True, slots=True)
class ValueAnswer:
    """A number or an expression, and its unit."""

    text: str
    number: Fraction | None
    unit: str


@dataclass(frozen=True, slots=True)
class WordAnswer:
    """An answer in words, such as `Tuesday` or `no solution`: letters only."""

    text: str


Joined = Literal["list", "set", "and", "or", "union", "mixed"]
"""How a list's elements are connected: by commas, braces, `and`, `or`, a union sign, or a mixture of the last three."""


@dataclass(frozen=True, slots=True)
class AnswerList:
    """A list, a set, a union, or both values of a plus-minus sign. `joiner`: what joins the elements, such as `or`.

    Elements may be in any order, except values of several names (`x=3, y=-2`).
    """

    items: tuple[str, ...]
    joiner: Joined = "list"


@dataclass(frozen=True, slots=True)
class BracketedRow:
    """An answer in brackets: a tuple, an interval or a matrix.

    An inequality is an interval; `inequality_variable` is its variable.
    """

    brackets: str
    items: tuple[str, ...]
    inequality_variable: str = ""


@dataclass(frozen=True, slots=True)
class EquationAnswer:
    """An equation or a chain of them: two sides or more."""

    sides: tuple[str, ...]
    first_side_is_name: bool
    """Whether the first side is a name, which has no value to compare."""

    @property
    def of_interest(self) -> tuple[str, ...]:
        """The sides of an equation that the verifier compares: of `x = 3`, only `3`."""
        return self.sides[1:] if self.first_side_is_name else self.sides


Read = ValueAnswer | WordAnswer | AnswerList | BracketedRow | EquationAnswer | CompoundQuantity

_JOINT = re.compile(
    rf"\s*(?:,\s*(?:and|or)(?![A-Za-z])|;|,|{INDIAN}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:land|wedge|lor|vee|cup)(?![A-Za-z]))\s*"
)
_KINDS = {"and": "and", "land": "and", "wedge": "and", "or": "or", "lor": "or", "vee": "or", "cup": "union"}
_IS = re.compile(r"(?<![<>!])=(?!=)")
_IN = re.compile(r"^(?:\\?[A-Za-z]+|\([a-z](?:,[a-z])+\))\s*\\in(?![A-Za-z])\s*(?=[(\[\\])")
_ABOUT = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])")
_ORDER = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_NAME = re.compile(
    rf"(?:[A-Za-z]|\\(?:{'|'.join(GREEK.values())}|ell)(?![A-Za-z])|\\(?:hat|bar|vec|overline)\{{[A-Za-z]{{1,2}}\}})"
    r"(?:_(?:\w|\{[^{}]*\}))?'*|[fghFGHPQTE](?:_\w)?(?:'*|\^\{-1\})\([^()=]{1,20}\)|[a-z]\([a-z](?:,[a-z])*\)"
    r"|(?:m ?)?\\angle ?[A-Z]{1,3}|\\overline\{[A-Z]{2}\}|[A-Z]{2,4}"
    r"|\|(?:[A-Zz]|[A-Z]{2}|\\(?:overline|vec|overrightarrow)\{[A-Za-z]{1,2}\})\||\[[A-Z]{3,5}\]|\\frac\{d[a-z]\}\{d[a-z]\}"
)
_WORDS_OF_A_NAME = re.compile(r"[A-Za-z]{2,}(?: [A-Za-z]+){0,4}")
_LABELS = words(
    "area perimeter volume total sum difference product probability ways cost price distance length width height "
    "radius diameter speed time age answer result value solution solutions mean median mode range "
    "average slope angle surface "
    "remainder quotient gcd lcm max min det maximum minimum final expected greatest smallest largest number amount of "
    "the profit rate term degree order count coefficient constant"
)
_NO_LETTERS = words("no is or if on of to in by as at an it be so do up we us not non and but")
_VALUE_NAMES = words("e i")
_WORDS = re.compile(r"[A-Za-z](?:(?:[A-Za-z' ]|(?<=[A-Za-z]{3})-(?=[A-Za-z]{3}))*[A-Za-z])?")


def read(text: str, nouns: frozenset[str] = frozenset()) -> Read:
    """Parse a normalised answer (see `tidy`): number, set, interval, matrix or words. `nouns` are possible units."""
    text = _without_spelling(_IN.sub("", text))
    if rows := matrix(text):
        return BracketedRow(*rows)
    if several_units := quantity(text):
        return several_units
    if (inner := _inside(text)) is not None and (inside := _bracketed(text, inner, nouns)) is not None:
        return inside
    if re.fullmatch(r"\\emptyset|(?:the )?empty set|(?:there (?:is|are) )?no solutions?", text, re.IGNORECASE):
        return AnswerList((), "set")
    if text == r"\reals" or re.fullmatch("all real numbers?|all reals", text):
        return BracketedRow("()", (r"-\infty", r"\infty"))
    if parts := parts_around(text):
        return AnswerList(parts, "union")
    if several := _several(text, nouns):
        return _as_one(several, nouns) or several
    sides = tuple(side.strip() for side in split_top(text, _IS))
    about = _ABOUT.split(sides[-1])
    if len(about) > 1:
        named = len(sides) == 1 and (is_name(about[0].strip(), nouns) or not about[0].strip())
        sides = (about[0].strip(), about[1].strip()) if named else (*sides[:-1], about[0].strip())
        sides = sides if sides[0] else sides[1:]
        text = "=".join(sides)
    if len(sides) > 1 and all(sides):
        return EquationAnswer(sides, is_name(sides[0], nouns))
    if interval := _inequality(text, nouns):
        return interval
    if (distance := without_bars(text)) is not None:
        return read(distance, nouns)
    signs = _signs(text)
    return AnswerList(signs) if len(signs) > 1 else _value(text, nouns)


def _bracketed(text: str, inner: str, nouns: frozenset[str]) -> Read | None:
    """Parse a text between brackets: a set, a tuple, an interval, or the text in them; None for others."""
    left, right = _edges(text)
    items = tuple(part.strip() for part in split_top(inner, re.compile("[,;]")))
    if left == r"\{":
        if (which := condition(inner)) is not None and isinstance(
            numbers := read(which, nouns), BracketedRow | AnswerList
        ):
            return numbers
        several = _several(inner, nouns)
        return AnswerList((several.items if several else (inner.strip(),)) if inner.strip() else (), "set")
    if len(items) > 1:
        return BracketedRow(left + right, items)
    return read(inner, nouns) if (left == "(" and right == ")") or re.fullmatch(r"\[-?\d+\]", text) else None


def _value(text: str, nouns: frozenset[str]) -> ValueAnswer | WordAnswer:
    """Parse a number or an expression with its unit, or a word."""
    value, unit = (text, "") if r"\pm" in text else split_unit(text, nouns)
    if value != text and (inner := _inside(value)) is not None and value.startswith("("):
        value = inner
    if (expanded := determinant(value)) is not None:
        value = expanded
    number = rational(value)
    number = spelled(value) if number is None else number
    if number is None and not unit and _WORDS.fullmatch(value):
        return WordAnswer(value)
    return ValueAnswer(in_base(value) or value, number, unit)


def _several(text: str, nouns: frozenset[str]) -> AnswerList | None:
    """Two or more elements, joined outside of brackets by commas, words or signs; None for any other text."""
    items = tuple(filter(None, (part.strip() for part in split_top(text, _JOINT))))
    if len(items) < 2:
        return None
    words = (re.sub("[^A-Za-z]", "", joint[0]) for joint in at_top(text, _JOINT))
    kinds = {_KINDS[word] for word in words if word}
    joined: Joined = "list" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed"  # type: ignore[assignment]
    names = [item.partition("=")[0] if _IS.search(item) else "" for item in items]
    one_name = _NAME.fullmatch(names[0]) or (names[0].startswith("(") and is_name(names[0]))
    if one_name and not any(names[1:]) and not _ORDER.search(text):  # `x = -2, 5`
        items = (items[0].partition("=")[2].strip(), *items[1:])
    if len(set(names) - {""}) < 2:
        items = tuple(sign for item in items for sign in _signs(item))
    return AnswerList(items, joined)


def _signs(text: str) -> tuple[str, ...]:
    """Both values of a text with one plus-minus sign; any other text alone."""
    if len(_PLUS_MINUS.findall(text)) != 1:
        return (text,)
    return tuple(re.sub(r"^\+ ?", "", _PLUS_MINUS.sub(sign, text)) for sign in "+-")


def _as_one(several: AnswerList, nouns: frozenset[str]) -> Read | None:
    r"""The interval of `x > 1 and x < 3`, or the set `\{1,2\} \cup \{3\}`; None for another list."""
    if several.joiner == "union":
        sets = [read(part, nouns) for part in several.items]
        if all(isinstance(part, AnswerList) and part.joiner == "set" for part in sets):
            return AnswerList(tuple(x for part in sets if isinstance(part, AnswerList) for x in part.items), "set")
    return _interval([_inequality(part, nouns) for part in several.items]) if several.joiner == "and" else None


def _interval(both: "list[BracketedRow | None]") -> BracketedRow | None:
    """One interval of x for `x > 1 and x < 3`; None for other pairs."""
    if (
        len(both) != 2
        or both[0] is None
        or both[1] is None
        or both[0].inequality_variable != both[1].inequality_variable
    ):
        return None
    low, high = sorted(both, key=lambda row: row is not None and row.items[0] == r"-\infty")
    assert low is not None and high is not None, "both are there"
    if (low.items[0], high.items[1]).count(r"-\infty") or low.items[1] != r"\infty" or high.items[0] != r"-\infty":
        return None
    return BracketedRow(low.brackets[0] + high.brackets[1], (low.items[0], high.items[1]), low.inequality_variable)


def _inequality(text: str, nouns: frozenset[str]) -> BracketedRow | None:
    interval = inequality(text, lambda name: is_name(name, nouns))
    return BracketedRow(*interval) if interval else None


def _without_spelling(text: str) -> str:
    """A number without its repetition in words, as `17` for `17 (seventeen)`; other texts unchanged."""
    twice = re.fullmatch(r"(\S{1,20}) ?\(([A-Za-z -]+)\)|([A-Za-z -]+?) ?\((\S{1,20})\)", text)
    if twice is None:
        return text
    number, spelling = (twice[1], twice[2]) if twice[1] else (twice[4], twice[3])
    value = rational(number)
    return number if value is not None and value == spelled(spelling) else text


def _inside(text: str) -> str | None:
    """The content of brackets that open at the start and close at the end; None without such brackets."""
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


def is_name(text: str, nouns: frozenset[str] = frozenset()) -> bool:
    """Whether a text is a name, such as `x`, `f(x)`, `a_1`, `\\theta`, `m+n`, `(x,y)` or `total area`."""
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    names = re.split("," if inner != text else "[-+]", inner)
    return bool(_NAME.fullmatch(text)) or (len(names) <= 6 and all(_is_one_name(x.strip(), nouns) for x in names))


def _is_one_name(text: str, nouns: frozenset[str]) -> bool:
    if text in _VALUE_NAMES:
        return False
    if _NAME.fullmatch(text):
        return True
    if not _WORDS_OF_A_NAME.fullmatch(text):
        return False
    if len(text) == 2 and text.lower() not in _NO_LETTERS:
        return True
    parts = text.lower().split()
    return all(part in _LABELS or (part in nouns and part not in CHANGES_A_NUMBER) for part in parts)


def is_definition(read: Read) -> TypeGuard[EquationAnswer]:
    """Whether an equation gives a name a value, such as `x = 3`."""
    return isinstance(read, EquationAnswer) and len(read.sides) == 2 and read.first_side_is_name
