"""What is never computed, and what math-verify is never asked."""

import re

from groupwise.tasks.mathematics.extract import LONGEST
from groupwise.tasks.mathematics.tidy import tidy
from groupwise.tasks.mathematics.units import words

_FUNCTIONS = words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp max min gcd lcm det")
_COMMANDS = words("sum prod int iint iiint oint lim limsup liminf bigcup bigcap sup inf")
_TOO_LARGE = (
    (re.compile(r"\d{401}"), "a number of more than 400 digits"),
    (re.compile(r"\^[{(\s]*[-+]?[{(\s]*\d{4}"), "a power of more than three digits"),
    (re.compile(r"\d[\s})]*\^[{(\s]*\d+[\s})]*\^|\^[^^]{0,40}\d[\s})]*\^[{(\s]*\d"), "a tower of powers"),
    (re.compile(r"\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^[^^]*\^"), "too many powers"),
    (re.compile(r"\d{4}[\s})]*!|[})\]]\s*!|!\s*!"), "a factorial that is too large"),
    (re.compile(r"\\(?:d|t)?binom[{(\s]*\d{4}|\\Gamma|\\zeta|\\uparrow"), "a function that may be too large"),
)
DEEPEST = 32
"""Brackets within brackets."""


def too_much(answer: str) -> str:
    """Why an answer is not even compared, from its text alone; empty where it is. Such an answer is wrong.

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
    text = tidy(answer)
    return next((why for pattern, why in _TOO_LARGE if pattern.search(text)), "")


def is_algebra(text: str) -> bool:
    r"""Whether math-verify is asked about this: no prose, no blanks between numbers, no sums or integrals left.

    >>> is_algebra(r"2\sqrt{2}"), is_algebra("not 34"), is_algebra("3 4"), is_algebra(r"\sum_{k=1}^{9} k")
    (True, False, False, False)
    """
    commands = re.findall(r"\\([A-Za-z]+)", text)
    words = re.findall("[A-Za-z]{3,}", re.sub(r"\\[A-Za-z]+", " ", text))
    return (
        len(text) <= 512
        and not _COMMANDS.intersection(commands)
        and all(word in _FUNCTIONS for word in words)
        and not re.search(r"(?<!_)\d \d|\d_|[\d)}] [A-Za-z]{2}|[<>¤&#]|[^\x00-\x7f]", text)
    )
