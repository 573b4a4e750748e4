"""Reads inequalities of one name as intervals: `x < 3`, `1 < x \\le 3`, `|x-2| \\ge 3`, `x \\ne 2`."""

import re
from collections.abc import Callable

from groupwise.verifiers.math.exact_rationals import rational

_ORDER = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_DISTANCE = re.compile(r"\|(?:(?P<name>[a-z])(?:(?P<sign>[-+])(?P<to>[^|]+))?|(?P<of>[^|]+)-(?P<subtracted>[a-z]))\|")
_POSITIVE = re.compile(r"\d*(?:\.\d+)?(?:\\sqrt\{\d+\}|\\pi|e)?(?:/\d+)?|\\frac\{\d*(?:\\sqrt\{\d+\}|\\pi)?\}\{\d+\}")

Interval = tuple[str, tuple[str, str], str]
"""The brackets of an interval, its ends, and its variable."""


def inequality(text: str, is_name: Callable[[str], bool]) -> Interval | None:
    """The interval of x for `x < 3`, `3 > x` or `1 < x <= 3`; None for other texts."""
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
        return left + right, (parts[0], parts[2]), parts[1]
    if len(parts) == 2 and is_name(parts[0]):
        return "(]" if closed[0] else "()", (r"-\infty", parts[1]), parts[0]
    if len(parts) == 2 and is_name(parts[1]):
        return "[)" if closed[0] else "()", (parts[0], r"\infty"), parts[1]
    return None


def without_bars(text: str) -> str | None:
    r"""An inequality of a distance without bars: `|x-2| < 3` as `-1<x<5`, and `|x| > 1` as `x<-1 or x>1`.

    The bound must be a positive number.

    >>> without_bars(r"|x-2|\le 3"), without_bars("1<|x|"), without_bars("|x|>-1")
    ('-1\\le x\\le 5', 'x<-(1) or x>1', None)
    """
    signs, parts = _ORDER.findall(text), [p.strip() for p in _ORDER.split(text)]
    if len(signs) != 1:
        return None
    sign = signs[0]
    if parts[1].startswith("|"):
        parts, sign = parts[::-1], {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[sign]
    distance, bound = _DISTANCE.fullmatch(parts[0]), rational(parts[1])
    if distance is None or (not bound or bound < 0 if bound is not None else not _POSITIVE.fullmatch(parts[1])):
        return None
    name, low, high = distance["name"] or distance["subtracted"], f"-({parts[1]})", parts[1]
    if (to := distance["to"] or distance["of"]) is not None:
        if (center := rational(to)) is None or bound is None:
            return None
        center = -center if distance["sign"] == "+" else center
        low, high = str(center - bound), str(center + bound)
    if sign in ("<", r"\le"):
        between = sign if sign == "<" else sign + " "
        return f"{low}{between}{name}{between}{high}"
    closed = " " if sign == r"\ge" else ""
    below, above = (r"\le ", r"\ge ") if closed else ("<", ">")
    return f"{name}{below}{low} or {name}{above}{high}"
