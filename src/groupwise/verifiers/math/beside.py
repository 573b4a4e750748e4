"""What the text beside a box does to it: `-\\boxed{5}` is part of a formula, and `not \\boxed{5}` is denied."""

import re

from groupwise.verifiers.math.assertions import denied

_TAG = re.compile(r"</?[A-Za-z][^<>\n]*>\s*$")
_MARKS = ("**", "__", "*", "_", "`")
_BLANK = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z]))*"
_OPERATOR = r"\\(?:cdot|times|div|pm|mp|neq?|not|lt|gt|ast|bmod|circ|choose|over)(?![A-Za-z])"
_JOINED_BEFORE = re.compile(
    rf"(?:{_OPERATOR}|\\(?:sqrt|log|ln|lg|exp|sin|cos|tan|sec|csc|cot|gcd|max|min)(?![A-Za-z])"
    rf"|[/^]|(?<![-=])>|<|(?<=[\w)}}\]])\s*\*{{1,2}}|(?<!\s)_){_BLANK}$"
    r"|(?:\d\.?|(?<![A-Za-z\\])[A-Za-z]|\\d?t?frac\{[^{}]*\}\{[^{}]*\}|(?:\\sqrt|[\^_])\{[^{}]*\})$"
    r"|(?:[\^_]|\\(?:[dtc]?frac|[dt]?binom|sqrt|log|ln|exp|sin|cos|tan|vec|hat|bar|overline|\w*cancel|sout|not)"
    r"(?:\[[^\]]*\])?(?:\{[^{}]*\})*)\{$"
)
"""The end of a text that makes the box behind it a part of a formula."""
_SIGN = re.compile(rf"(?P<word>[A-Za-z]{{2,}}|)(?P<blank>\s*)(?P<sign>[-–−+]){_BLANK}$")
_BULLET = re.compile(r"(?:^|\n)\s*[-–+*>]\s+$")
_JOINED_BEHIND = re.compile(
    rf"{_BLANK}(?:{_OPERATOR}|\^(?!\s*\{{?\s*\\circ)|<(?!/?[A-Za-z]+ ?/?>)|[/>]|_(?=[\w{{\\])|\*\*(?=[\w(\\])|\*\s*(?=[\d\\({{])|!(?![\s\"'*.)]|$)"
    r"|\\(?:pi|sqrt|[dt]?frac)(?![A-Za-z])|\+\s*[\w\\({]|[-−]\s*(?:[\d\\({]|[A-Za-z](?![A-Za-z])))"
    r"|(?:\.?\d|[abckintxyz](?![A-Za-z]))"
)
"""The start of a text that makes the box in front of it a part of a formula."""


def beside(before: str, behind: str) -> str:
    r"""What the texts around a box do to it: they make it a part of a formula, or deny it; empty if neither.

    >>> beside("so $x=", "$ cm."), beside("$-", "$"), beside("it is not ", ".")
    ('', 'is part of a formula', 'is denied')
    """
    before = _TAG.sub("", before)
    for mark in _MARKS:
        if before.endswith(mark) and behind.startswith(mark):
            before, behind = before.removesuffix(mark), behind.removeprefix(mark)
    joined = not _BULLET.search(before) and (_JOINED_BEFORE.search(before) or _is_signed(before))
    if joined or _JOINED_BEHIND.match(behind):
        return "is part of a formula"
    return "is denied" if denied(before, behind) else ""


def _is_signed(before: str) -> bool:
    """Whether a text ends with a plus or minus sign, and not with a dash between words."""
    sign = _SIGN.search(before)
    return sign is not None and not (sign["word"] and sign["blank"] and sign["sign"] in "-–" and before[-1].isspace())
