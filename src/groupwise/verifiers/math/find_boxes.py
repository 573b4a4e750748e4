"""Finds the outermost boxes in a text."""

import re
from bisect import bisect
from dataclasses import dataclass

LONGEST = 1000
"""The most characters of an answer. A longer one is rejected, not truncated."""

_TOKEN = re.compile(
    r"(?P<box>\\(?:boxed|fbox)(?:\s*\{|\s+(?=[-+]?\d)))|(?P<escaped>\\.)|(?P<brace>[{}])|(?P<blank>\n[ \t\r]*+\n)",
    re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class BoxPositions:
    """A box: the positions of its command, of its content, and behind it (None if it is not closed)."""

    start: int
    content_start: int
    end: int | None

    def content(self, text: str) -> str:
        """The text in a closed box."""
        assert self.end is not None, "the box is closed"
        return text[self.content_start : self.end].removesuffix("}").strip()


def boxes(text: str) -> list[BoxPositions]:
    r"""The outermost boxes, in their order. An unclosed one ends at the next empty line, or after 1000 characters.

    >>> [box.content(r"\boxed{1} \boxed{\boxed{2}+1}") for box in boxes(r"\boxed{1} \boxed{\boxed{2}+1}")]
    ['1', '\\boxed{2}+1']
    """
    opened: list[int | None] = []  # the index in `found` of each open brace, if it opens a box
    found: list[BoxPositions] = []
    blanks: list[int] = []
    for token in _TOKEN.finditer(text):
        if token["blank"]:
            blanks.append(token.start())
        elif token["box"] and not token[0].endswith("{"):
            number = _NUMBER.match(text, token.end(), token.end() + LONGEST)
            found.append(BoxPositions(token.start(), token.end(), number and number.end()))
        elif token["box"]:
            opened.append(len(found))
            found.append(BoxPositions(token.start(), token.end(), None))
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened and (i := opened.pop()) is not None:
            found[i] = BoxPositions(found[i].start, found[i].content_start, token.end())
    outermost, until = [], 0
    for box in found:
        if box.start >= until:
            outermost.append(box)
            until = box.end or 0
            if box.end is None or box.end - box.content_start > LONGEST + 1:
                line = bisect(blanks, box.start)
                until = min([box.content_start + LONGEST, *blanks[line : line + 1]])
    return outermost
