"""Size limits of answers that are compared, and of expressions that are compared by algebra."""

import re

from groupwise.verifiers.math.exact_rationals import rational
from groupwise.verifiers.math.extract_answer import LONGEST
from groupwise.verifiers.math.normalise_answer import tidy

_TOO_LARGE = (
    (re.compile(r"\d{401}"), "a number of more than 400 digits"),
    (re.compile(r"\^[{(\s]*[-+]?[{(\s]*\d{4}"), "a power of more than three digits"),
    (re.compile(r"\d[\s})]*\^[{(\s]*\d+[\s})]*\^|\^\{[^{}]{0,40}\d[\s})]*\^[{(\s]*\d"), "a tower of powers"),
    (re.compile(r"\d{4}[\s})]*!|\^[\s{]*\d+[\s})]*!|!\s*!"), "a factorial that is too large"),
    (re.compile(r"\\(?:d|t)?binom[{(\s]*\d{4}|\\Gamma|\\zeta|\\uparrow"), "a function that may be too large"),
)
_UNIT_POWER = re.compile(r"(?:(?<![A-Za-z\\])i|\(-?[1i]\)|(?<![\d.])1)\^(?:\{-?\d{1,12}\}|\d{1,12})(?![\d^])")
"""A power of 1, -1 or i, which has size 1."""
DEEPEST = 32
"""The most nested brackets."""


def too_much(answer: str) -> str:
    """The reason why an answer is too large to compare, and so is wrong; empty if it is not too large.

    >>> too_much("9^{9^9}"), too_much("9**9**9"), too_much("2^{10}")
    ('a tower of powers', 'a tower of powers', '')
    """
    if len(answer) >= LONGEST:
        return f"an answer of {LONGEST} characters or more"
    depth = deepest = 0
    for c in answer:
        depth += (c in "([{") - (c in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        return f"brackets {deepest} deep"
    text = _UNIT_POWER.sub("1", tidy(answer))
    if rational(text) is not None:
        return ""
    return next((why for pattern, why in _TOO_LARGE if pattern.search(text)), "")


def is_algebra(text: str) -> bool:
    r"""Whether a text can be compared by algebra: an expression or equation of plain characters, without long words.

    >>> is_algebra(r"2\sqrt{2}"), is_algebra("3 4"), is_algebra("approximately 7")
    (True, False, False)
    """
    return len(text) <= 512 and not re.search(
        r"[<>¤&#~@$?]|[^\x00-\x7f]|(?<![_^])\d \d|(?<![A-Za-z\\])[A-Za-z]{11}", text
    )
