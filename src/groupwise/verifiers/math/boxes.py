"""The boxes in a text that are no part of another box, and whether text beside one changes what it says."""

import re
from bisect import bisect
from dataclasses import dataclass

from groupwise.verifiers.math.assertions import denied

LONGEST = 1000
"""The most characters of an answer. A longer one is rejected, not truncated."""
BESIDE = 240
"""The characters before a box, and behind it, that are read."""

_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)(?:\s*\{|\s+(?=[-+]?\d)))|(?P<escaped>\\.)|(?P<brace>[{}])|(?P<blank>\n[ \t\r]*+\n)",
    re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class Box:
    """A box: the positions of its command, of its content, and behind it (None if it is not closed)."""

    start: int
    inside: int
    end: int | None

    def content(self, text: str) -> str:
        """The text in a closed box."""
        assert self.end is not None, "the box is closed"
        return text[self.inside : self.end].removesuffix("}").strip()


def boxes(text: str) -> list[Box]:
    r"""The outermost boxes, in their order. An unclosed one ends at the next empty line, or after 1000 characters.

    >>> [box.content(r"\boxed{1} \boxed{\boxed{2}+1}") for box in boxes(r"\boxed{1} \boxed{\boxed{2}+1}")]
    ['1', '\\boxed{2}+1']
    """
    opened: list[int | None] = []  # the index in `found` of each open brace, if it opens a box
    found: list[Box] = []
    blanks: list[int] = []
    for token in _TOKEN.finditer(text):
        if token["blank"]:
            blanks.append(token.start())
        elif token["box"] and not token[0].endswith("{"):
            number = _NUMBER.match(text, token.end(), token.end() + LONGEST)
            found.append(Box(token.start(), token.end(), number and number.end()))
        elif token["box"]:
            opened.append(len(found))
            found.append(Box(token.start(), token.end(), None))
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened and (i := opened.pop()) is not None:
            found[i] = Box(found[i].start, found[i].inside, token.end())
    outermost, until = [], 0
    for box in found:
        if box.start >= until:
            outermost.append(box)
            until = box.end or 0
            if box.end is None or box.end - box.inside > LONGEST + 1:
                line = bisect(blanks, box.start)
                until = min([box.inside + LONGEST, *blanks[line : line + 1]])
    return outermost


_MARKS = ("**", "__", "*", "_", "`")
_BLANK = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z]))*"
_OPERATOR = r"\\(?:cdot|times|div|pm|mp|neq?|not|lt|gt|ast|bmod|circ|choose|over)(?![A-Za-z])"
_JOINED_BEFORE = re.compile(
    rf"(?:{_OPERATOR}|\\(?:sqrt|log|ln|lg|exp|sin|cos|tan|sec|csc|cot|gcd|max|min)(?![A-Za-z])"
    rf"|[/^!]|(?<![-=])>|<|(?<=[\w)}}\]])\s*\*{{1,2}}|(?<!\s)_){_BLANK}$"
    r"|(?:\d|(?<![A-Za-z\\])[A-Za-z]|\\d?t?frac\{[^{}]*\}\{[^{}]*\}|(?:\\sqrt|[\^_])\{[^{}]*\})$"
    r"|(?:[\^_]|\\(?!text|math(?:rm|bf|it|sf)|color|fbox|emph|ensuremath|underline|bold|mbox)[A-Za-z]+(?:\{[^{}]*\})*)\{$"
)
"""The end of a text that makes the box behind it a part of a formula."""
_SIGN = re.compile(rf"(?P<word>[A-Za-z]{{2,}}|)(?P<blank>\s*)(?P<sign>[-–−+]){_BLANK}$")
_BULLET = re.compile(r"(?:^|\n)\s*[-–+*>]\s+$")
_JOINED_BEHIND = re.compile(
    rf"{_BLANK}(?:{_OPERATOR}|\^(?!\s*\{{?\s*\\circ)|[/<>]|_(?=[\w{{\\])|\*\*(?=[\w(\\])|\*\s*(?=[\d\\({{])|!(?![\s\"'*.)]|$)"
    r"|\\(?:pi|sqrt|[dt]?frac)(?![A-Za-z])|\+\s*[\w\\({]|[-−]\s*(?:[\d\\({]|[A-Za-z](?![A-Za-z])))"
    r"|(?:\d|[abckintxyz](?![A-Za-z]))"
)
"""The start of a text that makes the box in front of it a part of a formula."""


def beside(text: str, box: Box) -> str:
    r"""What the text beside a closed box does to it: makes it a part of a formula, or denies it; empty if neither.

    >>> [beside(text, boxes(text)[0]) for text in (r"so $x=\boxed{5}$ cm", r"$-\boxed{5}$", r"it is not \boxed{5}")]
    ['', 'is part of a formula', 'is denied']
    """
    assert box.end is not None, "the box is closed"
    before, behind = text[max(0, box.start - BESIDE) : box.start], text[box.end : box.end + BESIDE]
    for mark in _MARKS:
        if before.endswith(mark) and behind.startswith(mark):
            before, behind = before.removesuffix(mark), behind.removeprefix(mark)
    if not _BULLET.search(before) and (_JOINED_BEFORE.search(before) or _is_signed(before)):
        return "is part of a formula"
    if _JOINED_BEHIND.match(behind):
        return "is part of a formula"
    return "is denied" if denied(before, behind) else ""


def _is_signed(before: str) -> bool:
    """Whether a text ends with a plus or minus sign, and not with a dash between words."""
    sign = _SIGN.search(before)
    return sign is not None and not (sign["word"] and sign["blank"] and sign["sign"] in "-–" and before[-1].isspace())
