"""Equality of two answers by text, exact numbers and structure; algebra decides the remaining pairs."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from groupwise.verifiers.math.compound_quantities import CompoundQuantity
from groupwise.verifiers.math.normalise_answer import LABEL, tidy
from groupwise.verifiers.math.parse_answer import (
    AnswerList,
    BracketedRow,
    EquationAnswer,
    Read,
    ValueAnswer,
    WordAnswer,
    is_definition,
    read,
)
from groupwise.verifiers.math.thousands_separators import INDIAN
from groupwise.verifiers.math.units import fitting, nouns_of

Algebra = Callable[[str, str], bool | None]
"""A function that decides whether two expressions are equal; None if it cannot."""

_LETTERS = re.compile(r"(?<![A-Za-z\\])([A-Z]) (?=[A-Z](?![A-Za-z]))")
"""Blanks between capital letters: `A B` is `AB`."""
MOST = 12
"""The most elements of a list that is compared in any order."""


def same(gold: str, answer: str, algebra: Algebra = lambda gold, answer: None, problem: str = "") -> bool | None:
    """Whether an answer equals the gold answer mathematically; None if only algebra can decide and does not.

    Equal, not close: `0.33` is not `1/3`. A unit or per cent sign that one side omits is ignored; another unit is not.
    Nouns in the `problem`'s text are units. Lists and sets are compared in any order, tuples, intervals and matrices in
    theirs. In a chain of equations every member must equal the gold answer.

    >>> same("1/2", r"\\frac{2}{4}"), same("3, -3", r"x = \\pm 3"), same("(1,2]", "[1,2)"), same("12 cm", "12 m")
    (True, True, False, False)
    >>> same(r"\\sqrt{8}", r"2\\sqrt{2}") is None
    True
    """
    return _Comparison(algebra, nouns_of(problem)).compared(tidy(gold), tidy(answer))


@dataclass(frozen=True, slots=True)
class _Comparison:
    algebra: Algebra
    nouns: frozenset[str]

    def compared(self, gold: str, answer: str) -> bool | None:
        if _LETTERS.sub(r"\1", gold) == _LETTERS.sub(r"\1", answer):
            return bool(gold)
        if not gold or not answer:
            return False
        if LABEL in gold or LABEL in answer:
            return self.choices(gold, answer)
        before = gold, answer
        g, a = read(gold, self.nouns), read(answer, self.nouns)
        if isinstance(a, EquationAnswer) and not (isinstance(g, EquationAnswer) and len(g.sides) == len(a.sides) == 2):
            if a.first_side_is_name and not isinstance(g, EquationAnswer) and not _in_order(a.sides[0]):
                return False
            value = g.sides[-1] if is_definition(g) else gold
            return _every(self.compared(value, side) for side in a.of_interest)
        if isinstance(g, EquationAnswer) and isinstance(a, EquationAnswer):
            return self.equations(g, a)
        if isinstance(g, EquationAnswer):
            return self.compared(g.sides[1], answer) if is_definition(g) else False
        if isinstance(g, CompoundQuantity) or isinstance(a, CompoundQuantity):
            return _quantities(g, a) or _quantities(a, g)
        if isinstance(g, ValueAnswer | WordAnswer) and isinstance(a, ValueAnswer | WordAnswer):
            return self.words(g, a) if isinstance(g, WordAnswer) and isinstance(a, WordAnswer) else self.values(g, a)
        if isinstance(g, AnswerList) and isinstance(a, AnswerList):
            return self.lists(g, a)
        if isinstance(g, BracketedRow) and isinstance(a, BracketedRow):
            if (g.brackets, len(g.items)) != (a.brackets, len(a.items)) or (
                g.inequality_variable and a.inequality_variable and g.inequality_variable != a.inequality_variable
            ):
                return False
            return _every(self.compared(x, y) for x, y in zip(g.items, a.items, strict=True))
        if isinstance(g, BracketedRow) and isinstance(a, AnswerList):
            return self.coordinates(g, a)
        if isinstance(g, AnswerList) and isinstance(a, BracketedRow) and any(self.labels(g)):
            return self.coordinates(a, g)
        gold, answer = _alone(gold, g), _alone(answer, a)
        return self.compared(gold, answer) if (gold, answer) != before else False

    def choices(self, gold: str, answer: str) -> bool | None:
        """Whether choices like `(B) 12` are equal. One without label may equal the other's value or gold's letter."""
        letter, _, gold_value = gold.rpartition(LABEL)
        chosen, _, value = answer.rpartition(LABEL)
        if letter and letter == (chosen or value.strip("()")):
            return self.compared(gold_value, value) if chosen else True
        return False if letter and chosen else self.compared(gold_value, value)

    def words(self, gold: WordAnswer, answer: WordAnswer) -> bool | None:
        """Whether two answers in words are equal, up to their first letter's case; products of letters in any order."""
        if _folded(gold.text) == _folded(answer.text):
            return True
        g, a = (re.sub("(?<=[a-z]) (?=[a-z]$|[a-z] )", "", word.text) for word in (gold, answer))  # `x y`
        if _is_product(g) and _is_product(a):
            return sorted(g) == sorted(a)
        return False

    def values(self, gold: ValueAnswer | WordAnswer, answer: ValueAnswer | WordAnswer) -> bool | None:
        if any(isinstance(word, WordAnswer) and len(word.text) > 3 for word in (gold, answer)):
            return False
        units = [value.unit if isinstance(value, ValueAnswer) else "" for value in (gold, answer)]
        if not fitting(*units):
            return False
        percent = "%" in units and units[0] != units[1]
        if gold.text == answer.text and not percent:
            return True
        numbers = [value.number if isinstance(value, ValueAnswer) else None for value in (gold, answer)]
        if numbers[0] is not None and numbers[1] is not None:
            g, a = numbers[0], numbers[1]
            if percent and (g != a or abs(g) <= 1):  # `0.5%` is not `0.5`
                g, a = (g / 100 if units[0] else g), (a / 100 if units[1] else a)
            return g == a
        if percent:
            return False
        for one, other, unit in ((gold, answer, units[0]), (answer, gold, units[1])):
            if len(unit) == 1 and other.text == one.text + unit:  # `5m` for `5 m`
                return True
        infinite = [re.fullmatch(r"[-+]?\\infty", value.text) for value in (gold, answer)]
        if any(infinite):
            return all(infinite) and gold.text.lstrip("+") == answer.text.lstrip("+")
        return self.algebra(gold.text, answer.text)

    def equations(self, gold: EquationAnswer, answer: EquationAnswer) -> bool | None:
        (g, gold_value), (a, value) = gold.sides, answer.sides
        if gold.first_side_is_name and g == a:
            return self.compared(gold_value, value)
        return self.algebra(f"{g}={gold_value}", f"{a}={value}")

    def lists(self, gold: AnswerList, answer: AnswerList) -> bool | None:
        if len(gold.items) > MOST or len(answer.items) > MOST or self.join(gold) != self.join(answer):
            return False
        sets = gold.joiner == answer.joiner == "set"
        if len(gold.items) != len(answer.items) and not sets:
            return False
        labels = self.labels(answer)
        if not sets and "" in labels and any(labels):  # `xy=0, 7`
            return False
        if len(set(labels)) > 1 and not any(self.labels(gold)):  # values of several names: in the written order
            return _every(self.compared(g, a) for g, a in zip(gold.items, answer.items, strict=False))
        if not (gold.items and answer.items):
            return not (gold.items or answer.items)
        table = [[_is_set(g) == _is_set(a) and self.compared(g, a) for a in answer.items] for g in gold.items]
        if not all(any(cell is not False for cell in line) for line in (*table, *zip(*table, strict=True))):
            return False
        unclear = any(cell is None for line in table for cell in line)
        if sets:  # an element may occur twice
            return None if unclear else True
        unmatched = list(range(len(answer.items)))
        for line in table:  # equality is transitive, so the first match is as good as any
            match = next((j for j in unmatched if line[j]), None)
            if match is None:
                return None if unclear else False
            unmatched.remove(match)
        return True

    def labels(self, several: AnswerList) -> list[str]:
        """The variable of each element in a list such as `x=3, y=-2`, without subscript; "" for one without."""
        reads = [read(item, self.nouns) for item in several.items]
        return [re.sub("_.*", "", r.sides[0]) if is_definition(r) else "" for r in reads]

    def join(self, several: AnswerList) -> str:
        """How a list's elements are connected: `or` and `and` differ between conditions, but not between values."""
        if several.joiner == "mixed":
            return "mixed"
        reads = [read(item, self.nouns) for item in several.items]
        one_of = several.joiner in ("or", "union")
        if several.joiner == "union" or _any(
            reads, lambda r: isinstance(r, BracketedRow) and bool(r.inequality_variable)
        ):
            return "one" if one_of else "all"
        if _any(reads, lambda r: isinstance(r, WordAnswer)) or len(set(self.labels(several)) - {""}) > 1:
            return "one" if one_of else "all"
        return "any"

    def coordinates(self, gold: BracketedRow, answer: AnswerList) -> bool | None:
        """Whether named values such as `x=3, y=-2` are the point `(3,-2)`: the variables in alphabetical order."""
        reads = [read(item, self.nouns) for item in answer.items]
        pairs = [(r.sides[0], r.sides[1]) for r in reads if is_definition(r) and re.fullmatch("[a-z]", r.sides[0])]
        names = [name for name, _ in pairs]
        if (
            gold.brackets != "()"
            or gold.inequality_variable
            or answer.joiner not in ("list", "and")
            or len(set(names)) != len(reads)
        ):
            return False
        if len(gold.items) != len(pairs):
            return False
        return _every(self.compared(g, value) for g, (_, value) in zip(gold.items, sorted(pairs), strict=True))


def _alone(text: str, one: Read) -> str:
    """The element of a set of one, or the Indian number that may be a list; any other text unchanged.

    A set of one expression with letters is no element: `\\{x\\}` is a fractional part, too.
    """
    if isinstance(one, AnswerList) and one.joiner == "set" and len(one.items) == 1:
        letters = re.search(r"(?<![A-Za-z\\])[A-Za-z]|\\emptyset", one.items[0])
        return text if letters or _is_set(one.items[0]) else one.items[0]
    return text.replace(INDIAN, "") if isinstance(one, AnswerList) and one.joiner == "list" else text


def _is_set(text: str) -> bool:
    """Whether an element is a set in braces: `\\{1\\}` is no element of `\\{1, 2\\}`."""
    return text.startswith(r"\{")


def _quantities(one: Read, other: Read) -> bool:
    """Whether a quantity of several units equals another, or a number."""
    if not isinstance(one, CompoundQuantity):
        return False
    if isinstance(other, CompoundQuantity):
        return (one.size_in_smallest_unit, one.scale_index) == (other.size_in_smallest_unit, other.scale_index)
    return isinstance(other, ValueAnswer) and other.number is not None and one.is_number(other.number, other.unit)


_VARIABLES = frozenset("abcdxyz")
_FOLDED = frozenset(("no", "yes", "odd", "even", "true", "false", "none", "zero", "both", "all"))


def _folded(text: str) -> str:
    """The text with its words in lower case, except those that may be products of letters, such as `Aa` or `ABC`."""
    return " ".join(word.lower() if _is_word(word) else word for word in text.split(" "))


def _is_word(text: str) -> bool:
    lower = text.lower()
    if lower in _FOLDED:
        return True
    pairs = re.fullmatch(r"(?:(\w)\1)+", lower)
    if len(text) < 3 or pairs or set(lower) <= _VARIABLES or not set(lower) & set("aeiouy"):
        return False
    return text == lower or text == text.capitalize() or (len(text) >= 5 and text.isupper())


def _is_product(text: str) -> bool:
    """Whether letters are more likely a product of variables (`xy`) than a word."""
    if len(text) not in (2, 3) or not text.isalpha() or not text.islower():
        return False
    return set(text) <= _VARIABLES or not set(text) & set("aeiou")


def _in_order(name: str) -> bool:
    """Whether the names in front of a tuple are in alphabetical order, which is the implied order without names."""
    names = name[1:-1].split(",") if name.startswith("(") else [name]
    return names == sorted(names, key=str.lower) or names == ["m", "b"]


def _any(reads: Iterable[Read], test: Callable[[Read], bool]) -> bool:
    return any(test(r) for r in reads)


def _every(decisions: Iterable[bool | None]) -> bool | None:
    """Three-valued `all`: False if any value is False, else None if any is None, else True."""
    values: Sequence[bool | None] = list(decisions)
    return False if False in values else None if None in values else True
