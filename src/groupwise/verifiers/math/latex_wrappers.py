"""Removes what LaTeX adds to an answer without changing it: fonts, sizes, groups, environments of lines."""

import re

_FONTS = (
    r"text|textbf|textit|textrm|texttt|textup|textsf|textsc|textnormal|emph|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox"
    r"|operatorname\*?|bold|boldsymbol|bm|pmb|ensuremath|uline"
)
_SWITCHES = (
    r"rm|bf|it|sf|tt|sc|em|tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge|displaystyle"
    r"|textstyle|scriptstyle|boldmath|mathstrut|strut|nonumber|notag|relax"
)
_BRACE = re.compile(rf"(?P<font>\\(?:{_FONTS})\s*\{{)|\\.|[{{}}]", re.DOTALL)
_SWITCH = re.compile(rf"\\(?:{_SWITCHES})(?![A-Za-z])\s*|\\(?:tag|label)\*?\s*\{{[^{{}}]*\}}")
_EMPTY = re.compile(r"(?<![A-Za-z}\]^_\\])\{\s*\}")
_LINES = re.compile(
    r"\\begin\{(aligned|align|equation|gather|gathered|split|multline|eqnarray)(\*?)\}(.*?)\\end\{\1\2\}", re.DOTALL
)
_BREAK = re.compile(r"\s*\\\\(?:\[[^\]]*\])?\s*&?\s*")
_LETTER = r"[A-Za-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|sigma|omega|phi|psi|xi)"
_BOLD = re.compile(
    rf"\\(?:mathbf|boldsymbol|bm|pmb|bold|overrightarrow|vec)\s*(?:\{{\s*({_LETTER})\s*\}}|([A-Za-z])(?![A-Za-z]))"
    rf"|\{{\s*\\bf\s+({_LETTER})\s*\}}"
)
_BETWEEN = re.compile(r"\\(over|choose)(?![A-Za-z])")
MOST_OVER = 32
"""The most fractions with `\\over` that are read."""


def ungrouped(text: str) -> str:
    r"""The text without fonts, sizes, empty groups and environments of lines; a bold letter in it is a vector.

    >>> ungrouped(r"{\rm 42}"), ungrouped(r"{3 \over 8}"), ungrouped(r"\mathbf{x}+1"), ungrouped(r"{}42{}")
    ('{42}', '\\frac{3}{8}', '\\vec{x}+1', '42')
    """
    if "\\" not in text and "{" not in text:
        return text
    text = _LINES.sub(lambda lines: _on_one_line(lines[3]), text)
    text = re.sub(r"\\in\s*\\mathbf\s*\{\s*R\s*\}", r"\\in\\reals ", text)
    text = _BOLD.sub(lambda bold: rf"\vec{{{bold[1] or bold[2] or bold[3]}}}", text)
    text = _EMPTY.sub("", _SWITCH.sub("", _without_fonts(text)))
    for _ in range(MOST_OVER):
        if (between := _BETWEEN.search(text)) is None:
            break
        text = _as_command(text, between)
    return text


def _without_fonts(text: str) -> str:
    """The text without commands for fonts, but with their arguments; unchanged if a brace is not closed."""
    written: list[str] = []
    fonts: list[bool] = []  # for each open brace, whether a font's command opened it
    at = 0
    for token in _BRACE.finditer(text):
        written.append(text[at : token.start()])
        at = token.end()
        if token["font"] or token[0] == "{":
            fonts.append(bool(token["font"]))
            written.append(" " if token["font"] else "{")
        elif token[0] == "}" and fonts:
            written.append(" " if fonts.pop() else "}")
        else:
            written.append(token[0])
    return text if fonts else "".join([*written, text[at:]])


def _on_one_line(lines: str) -> str:
    """The lines of an environment: `x &= 3 \\\\ y &= 4` as `x=3, y=4`, and `x &= 3 \\\\ &= 4` as a chain."""
    parts = [part.replace("&", "").strip() for part in _BREAK.split(lines.strip()) if part.strip()]
    return "".join(part if i == 0 or part.startswith("=") else f", {part}" for i, part in enumerate(parts))


def _as_command(text: str, between: "re.Match[str]") -> str:
    r"""The text with `{a \over b}` as `\frac{a}{b}`, and `{n \choose k}` as `\binom{n}{k}`."""
    start, end = _group(text, between.start())
    above, below = text[start : between.start()].strip(), text[between.end() : end].strip()
    command = "frac" if between[1] == "over" else "binom"
    if start:
        start, end = start - 1, end + 1
    elif re.search("[=,;]", above + below):
        return text.replace(between[0], r"\atop", 1)  # unreadable
    return rf"{text[:start]}\{command}{{{above}}}{{{below}}}{text[end:]}"


def _group(text: str, at: int) -> tuple[int, int]:
    """The start and the end of the content of the braces around a position; the whole text without braces."""
    opened: list[int] = []
    start = 0
    for brace in _BRACE.finditer(text):
        if brace.start() == at:
            start = opened[-1] if opened else 0
        if brace[0] == "{":
            opened.append(brace.end())
        elif brace[0] == "}" and opened:
            if brace.start() > at and opened[-1] == start:
                return start, brace.start()
            opened.pop()
    return start, len(text)
