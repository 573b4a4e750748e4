"""Normalises the LaTeX and plain-text spellings of mathematical answers."""

import re

from groupwise.verifiers.math.latex_wrappers import ungrouped
from groupwise.verifiers.math.thousands_separators import without_thousands
from groupwise.verifiers.math.unicode_to_latex import in_latex


def _french(interval: "re.Match[str]") -> str:
    """The interval `]0,1[` as `(0,1)`."""
    return f"{interval[1]}({interval[2]}{')' if interval[3] == '[' else ']'}"


_REWRITES = [
    (r"\\(?:dfrac|tfrac|cfrac|nicefrac|sfrac)(?![A-Za-z])", r"\\frac"),
    (r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|Bigg|displaystyle|textstyle|limits)(?![A-Za-z])\.?", ""),
    (r"\\leq(?:q|slant)?(?![A-Za-z])|<=", r"\\le "),
    (r"\\geq(?:q|slant)?(?![A-Za-z])|>=", r"\\ge "),
    (r"\\neq(?![A-Za-z])|!=", r"\\ne "),
    (r"\\lt(?![A-Za-z])", "<"),
    (r"\\gt(?![A-Za-z])", ">"),
    (r"\\lbrace(?![A-Za-z])\s*", r"\\{"),
    (r"\\rbrace(?![A-Za-z])", r"\\}"),
    (r"\\lbrack(?![A-Za-z])", "["),
    (r"\\rbrack(?![A-Za-z])", "]"),
    (r"\\[lr]?vert(?![A-Za-z])", "|"),
    (r"\\(?:backslash|smallsetminus)(?![A-Za-z])", r"\\setminus "),
    (r"\\colon(?![A-Za-z])|\{:\}", ":"),
    (r"\^\s*\{?\s*\\prime\s*\}?", "'"),
    (r"\\(?:pounds|textsterling)(?![A-Za-z])", "£"),
    (r"\\(?:euro|texteuro)(?![A-Za-z])", "€"),
    (r"\\(?:yen|textyen)(?![A-Za-z])", "¥"),
    (r"\\textdollar(?![A-Za-z])", "¤"),
    (r"\\(?:varnothing|empty)(?![A-Za-z])", r"\\emptyset "),
    (r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}|\\color\s*\{[^{}]*\}|\\(?:underline|therefore)(?![A-Za-z])", ""),
    (r"\\mathbb\s*(?:\{\s*R\s*\}|R)|\\R(?![A-Za-z])|ℝ", r"\\reals "),
    (r"\^\s*\{?\s*\\(?:top|intercal)(?![A-Za-z])\s*\}?", "^T"),
    (r"\\div(?![A-Za-z])", "/"),
    (r"\\(?:degree|textdegree)(?![A-Za-z])|\^\s*\{?\s*\\circ\s*\}?", " degrees "),
    (r"\\%|\\?\bpercent\b|\bper cent\b", "%"),
    (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)|√\s*\(([^()]*)\)|√\s*(\d+|[a-z])", r"\\sqrt{\1\2\3}"),
    (r"(?<![A-Za-z\\])(?:infinity|Infinity|inf)(?![A-Za-z])", r"\\infty "),
    (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
    (r"\*\*", "^"),
    (r"\*", r"\\cdot "),
    (r"(?<=\d)(?:\\[,!;: ]|\{,\}|\{\\,\}|,\\!)\s*(?=\d{3}(?!\d))", ""),
    (r"(?<!\\)\\[!]", ""),
    (r"(?<!\\)\\[,;: ]|~|\\q?quad(?![A-Za-z])|\\(?:hspace|phantom)\{[^{}]*\}", " "),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"\\frac\s*(\{[^{}]*\})\s*(\d|[a-z])", r"\\frac\1{\2}"),
    (r"\\sqrt\s*(\d|[a-z])(?![A-Za-z])", r"\\sqrt{\1}"),
    (r"\\(hat|bar|tilde|dot|overline)\s+([A-Za-z])(?![A-Za-z])", r"\\\1{\2}"),
    (r"([\^_])\s*\{(\w)\}(?!\d)", r"\1\2"),  # not `x^{1}0`, which is no `x^{10}`
    (r"(^|\\(?:cup|cap|in|setminus)\s*|[=,]\s*)\]\s*([^][()]+[,;][^][()]+)([][])", _french),
    (r"(?<!\\)\[\s*([^][()]+[,;][^][()]+)\[", r"[\1)"),
]
_COMPILED = [(re.compile(pattern), to) for pattern, to in _REWRITES]
_PAIRS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("`", "`"), ("*", "*"))
_FONTS = ("boxed", "fbox", "text", "textbf", "mathrm", "mathbf", "boldsymbol", "bm", "mbox", "ensuremath")
_WRAPPERS = (*(rf"\{font}{{" for font in _FONTS), "{")
_EMPHASIS = re.compile(
    r"(?<![\w)}\]*])(\*\*|__)(?![\s*_])([^*_]+)(?<!\s)\1(?![\w(\\{*])|^(\*)([^*\s]+)\*(?=\s+[A-Za-z])"
)
LABEL = "¦"
"""The mark between the letter of a choice and its value, as in `(B) 12`."""
_CHOICE = re.compile(
    r"(?:\\(?:text(?:bf|rm|it)?|mathrm|mathbf|mbox)\s*\{\s*\(?([A-E])[).]\s*\}"
    r"|\(([A-E])\)(?=(?:\s|~|\\[ ,;:])+(?:[\d$]|\\[dt]?frac|\\sqrt)))"
    r"(?:\s|~|\\[ ,;:]|\\q?quad(?![A-Za-z]))*(?=\S)"
)


def tidy(text: str) -> str:
    """The normal spelling of an answer: no delimiters, fonts or spacing commands; `¤` for a dollar sign of money.

    >>> tidy(r"$\\dfrac{1}{2}$."), tidy(r"\\$1{,}234.50"), tidy(r"\\left( 1,\\, 2 \\right)"), tidy("**34**")
    ('\\\\frac{1}{2}', '¤1234.50', '(1,2)', '34')
    """
    text = bare(in_latex(text))
    if choice := _CHOICE.match(text):
        return f"{choice[1] or choice[2]}{LABEL}{tidy(text[choice.end() :])}"
    text = _EMPHASIS.sub(r"\2\4", text)
    text = re.sub(r"\\\$|\$(?=\s*[-\d.])|(?<=\d)\s*\$$", "¤", text).replace("$", " ")
    text = ungrouped(text)
    for pattern, to in _COMPILED:
        text = pattern.sub(to, text)
    text = without_thousands(re.sub(r"\s+", " ", bare(text)))
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=\\)", r"\1", re.sub(r"\s+", " ", text)).strip()
    return re.sub(r"(?<![A-Za-z0-9_.%])\s|\s(?![A-Za-z0-9\\¤.])|(?<=[0-9%}])\s(?=\\)", "", text)


def bare(text: str) -> str:
    """The text without surrounding dollar signs, emphasis, boxes, and without a final full stop."""
    before = None
    while text != before:
        before = text
        text = text.strip().lstrip(":").lstrip()
        if text.endswith((".", ",", ";", ":")) and not text.endswith((r"\,", r"\;", r"\:", "..")):
            text = text[:-1]
        if text.endswith("\\") and not text.endswith("\\\\"):  # a spacing command whose blank was stripped
            text = text[:-1]
        if text.count("**") == 1:  # emphasis that begins before the answer, or ends behind it
            text = text.removeprefix("**").removesuffix("**")
        for left, right in _PAIRS:
            inside = text[len(left) : -len(right)]
            alone = left not in inside.replace(r"\$", "")  # a dollar that means money
            if text.startswith(left) and text.endswith(right) and len(text) > 2 * len(left) and alone:
                text = inside
        for wrapper in _WRAPPERS:
            if text.startswith(wrapper) and closing(text, len(wrapper) - 1) == len(text) - 1:
                text = text[len(wrapper) : -1]
    return text


def closing(text: str, at: int) -> int | None:
    """The position of the brace that closes the one at `at`; None if it is not closed.

    >>> closing("{a{b}}c", 0), closing("{a", 0)
    (5, None)
    """
    depth, escaped = 0, False
    for i in range(at, len(text)):
        c = text[i]
        if escaped:
            escaped = False
        elif c == "\\":
            escaped = True
        elif c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                return i
    return None


def split_top(text: str, separator: "re.Pattern[str]") -> list[str]:
    """Split a text at the separators that are outside of all brackets and braces.

    >>> split_top("(1,2),3", re.compile(","))
    ['(1,2)', '3']
    """
    parts, start = [], 0
    for found in at_top(text, separator):
        parts.append(text[start : found.start()])
        start = found.end()
    return [*parts, text[start:]]


def at_top(text: str, pattern: "re.Pattern[str]") -> "list[re.Match[str]]":
    """The matches of a pattern that are outside of all brackets and braces."""
    matches: list[re.Match[str]] = []
    level = start = 0
    for found in pattern.finditer(text):
        level += _level(text[start : found.start()])
        start = found.start()
        if level == 0:
            matches.append(found)
    return matches


def _level(text: str) -> int:
    """The number of brackets of any kind that a text leaves open. Half-open intervals mix round and square ones."""
    return sum(text.count(c) for c in "([{") - sum(text.count(c) for c in ")]}")
