"""Reads sets of numbers that are given by a condition, or by the numbers that are not in them."""

import re
from itertools import pairwise

from groupwise.verifiers.math.exact_rationals import rational
from groupwise.verifiers.math.normalise_answer import split_top

_BUILDER = re.compile(
    r"(?P<name>[a-z])(?: ?\\in ?\\reals)? ?(?:\\mid(?![A-Za-z])|\\vert(?![A-Za-z])|[|:]) ?(?P<condition>.+)"
)
_LACKS = re.compile(
    r"(?:[a-z] ?\\in ?)?\\reals ?(?:\\setminus|-) ?\\\{(?P<set>[^{}]*(?:\{[^{}]*\}[^{}]*)*)\\\}"
    r"|all real(?: number)?s? (?:except|besides|other than|but not)(?: for)? (?P<words>.+)"
    r"|(?:[a-z] ?\\in ?)?\\reals ?, ?[a-z] ?\\ne ?(?P<values>.+)"
)
_UNEQUAL = re.compile(r"[a-z] ?\\ne(?![A-Za-z])")
_AND = re.compile(r",|(?<![A-Za-z\\])and(?![A-Za-z])")
_REPEATED = re.compile(r"[a-z] ?(?:\\ne|=) ?")


def condition(inner: str) -> str | None:
    r"""The condition of the real numbers in `\{x : x > 2\}`, between the braces; None for another text.

    >>> condition(r"x \in \reals : x>2"), condition("x^2 : x>2")
    ('x>2', None)
    """
    builder = _BUILDER.fullmatch(inner.strip())
    if builder is None or not re.search(rf"(?<![A-Za-z\\]){builder['name']}(?![A-Za-z])", builder["condition"]):
        return None
    given = builder["condition"].strip()
    return rf"\reals,{given}" if _UNEQUAL.match(given) else given


def parts_around(text: str) -> tuple[str, ...] | None:
    r"""The intervals of all real numbers but some, as `\reals \setminus \{2\}`; None for another text.

    Several numbers must be rational, so that their order is known.

    >>> parts_around(r"\reals\setminus\{3,1\}"), parts_around(r"\reals-\{a\}")
    (('(-\\infty,1)', '(1,3)', '(3,\\infty)'), ('(-\\infty,a)', '(a,\\infty)'))
    """
    lacks = _LACKS.fullmatch(text)
    if lacks is None:
        return None
    values = lacks["set"] or lacks["words"] or lacks["values"]
    points = [_REPEATED.sub("", point.strip()) for point in split_top(values, _AND)] if values else []
    if not points or not all(points) or re.search(r"[=<>]|\\(?:pm|in|le|ge|ne|cup)(?![A-Za-z])", "".join(points)):
        return None
    if len(points) > 1:
        if None in (numbers := {point: rational(point) for point in points}).values():
            return None
        points = sorted(numbers, key=lambda point: numbers[point] or 0)
    ends = [r"-\infty", *points, r"\infty"]
    return tuple(f"({low},{high})" for low, high in pairwise(ends))
