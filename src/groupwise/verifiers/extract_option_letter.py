"""Extracts the option letter that a text names: exactly one letter, or none."""

import re
import unicodedata

from groupwise.data import verdicts_have

_LOOKALIKES = str.maketrans("АВСЕНІЈКМОРТХΑΒΕΗΙΚΜΝΟΡΤΧΥΖ", "ABCEHIJKMOPTXABEHIKMNOPTXYZ")
"""Cyrillic and Greek capitals that look like Latin ones."""
_LAYOUT = re.compile(
    r"\\(?:(?:text[a-z]*|math[a-z]*|boxed|fbox|mbox|left|right|bf|rm|quad|qquad)(?![A-Za-z])|[\s,;:!()\[\]\\])"
    r"|[$*_`{}\[\]]"
)
_COMMAND = re.compile(r"\\[A-Za-z]{2,}")
_NAMES = r"\\(?:d?frac|sqrt|cdot|times|triangle|angle|pi)(?![A-Za-z])"
_FORMULA = re.compile(
    rf"(?:\$|\\\()(?=[^$\\+^=<>-]*+(?:[+^=<>-]|{_NAMES}))"
    rf"(?:[\d\s()+^/=<>.,{{}}-]|[A-Z]++|[a-z](?![A-Za-z])|{_NAMES})*+(?:\$|\\\))"
)
_OTHERS = re.compile(r"\W*(?:(?:or|and|nor|vs|versus)\b)|\s*[?&/]", re.IGNORECASE)
"""Pattern of text behind a letter that shows that the answer names more than that letter."""
_VERB = "(?:is|was|does|can|could|may|must|seems|looks|appears)"
_NOT = "(?:not|never|wrong|incorrect|false|impossible|excluded|eliminated|ruled|invalid|unlikely|out)"
_DENIED = re.compile(
    rf"\W*(?:(?:it|this|that|which)\s+)?(?:cannot\b|can['’]t\b|{_VERB}(?:n['’]t\b|(?:\s+\w+){{0,3}}?\s+{_NOT}\b))",
    re.IGNORECASE,
)
_TURN = r"(?:or|and|nor|also|but|then|no|nope|not|wait|actually|rather|sorry|maybe|perhaps|it['’]s|it|is)"
"""Pattern of a word at the start of a line that retracts, or adds to, the line above."""


@verdicts_have()
class OptionLetterExtractor:
    """Extracts the letter that a text names: `B`, `(b)`, `B. because it floats`, `option B`.

    The text must begin with the letter. It names none if the letter of another option follows as a separate word, if
    it continues with `or` or a similar word, or if it calls the letter wrong. The article `a`, the pronoun `I` and the
    variables of a formula are not letters.
    """

    def __init__(self, options: str) -> None:
        option = f"[{options}]"
        word = r"(?!(?-i:[aI])\s+(?!(?:is|are|or|and|was|as|too|also|if|but|may|might|could|can|would)\b)[a-z]{2})"
        alone = rf"(?<![A-Za-z0-9]){word}({option})(?![A-Za-z0-9])"
        self._head = re.compile(
            rf"[\s:]*(?:(?:option|choice|answer)\s*)?"
            rf"(?:\(\s*({option})\s*\)|({option})(?=\s*(?:[.:)]|$))(?:\s*[.:)])?+)(?!\w)",
            re.IGNORECASE,
        )
        self._alone = re.compile(alone, re.IGNORECASE)
        letters = "".join(filter(str.isalpha, options))
        self._run = re.compile(rf"(?<![A-Za-z0-9])(?<!\d )[{letters}]{{2,}}(?![A-Za-z0-9])" if letters else "(?!)")
        self._below = re.compile(
            rf"(?:\W*{_TURN}\b)++\W*{alone}|\W*(?:(?:option|choice)\s+)?({option})\s*(?:[.:)]|$)", re.IGNORECASE
        )

    def named(self, text: str, below: str = "") -> str:
        """The letter in upper case; empty if the text names none, or several.

        `below` are the lines that explain the answer. They may mention other letters, but must not begin with one.

        >>> texts = ("(b)", r"\\textbf{B.} 12", "option c", "A dog", "A or B", "A. B")
        >>> [OptionLetterExtractor("ABCD").named(x) for x in texts]
        ['B', 'B', 'C', '', '', '']
        """
        text = _plain(text)
        head = self._head.match(text)
        if head is None:
            return ""
        letter, tail = (head[1] or head[2]).upper(), text[head.end() :]
        others = {match[1].upper() for match in self._alone.finditer(tail)} - {letter}
        if others or self._run.search(tail) or _OTHERS.match(tail) or _DENIED.match(tail):
            return ""
        starts = (match for line in _plain(below).split("\n") if (match := self._below.match(line)))
        return "" if any((match[1] or match[2]).upper() != letter for match in starts) else letter


def _plain(text: str) -> str:
    """The text without layout commands; in formulas, `a` to `z` and runs of capitals (`AB`, a segment) become 0."""
    if not text.isascii():  # one character at a time, since NFKC sorts a run of combining marks in quadratic time
        text = "".join(unicodedata.normalize("NFKC", c) for c in text).translate(_LOOKALIKES)
    text = _FORMULA.sub(lambda formula: re.sub("[a-z]|[A-Z]{2,}", "0", formula[0]), text)
    return _COMMAND.sub(r"\\ ", _LAYOUT.sub(" ", text)).strip()
