"""Reads matrices: their elements row by row, a number times a matrix, and determinants."""

import re
from itertools import cycle

from groupwise.verifiers.math.normalise_answer import split_top

_MATRIX = re.compile(
    r"(?P<factor>.*?)(?P<left>\\det ?\(?|[(\[|]?)\\begin\{(?P<kind>\w?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?"
    r"(?P<body>(?:(?!\\begin).)*)\\end\{(?P=kind)\}(?P<right>[)\]|]?)",
    re.DOTALL,
)
_BRACKETS = (("", ""), ("(", ")"), ("[", "]"), ("|", "|"), (r"\det", ""), (r"\det(", ")"))
_SIGN = re.compile("[-+]")
LARGEST = 4
"""The most rows of a determinant that is expanded."""

Matrix = tuple[str, tuple[str, ...]]
"""The kind of a matrix with its shape, such as `matrix 2x2`, and its elements."""


def matrix(text: str) -> Matrix | None:
    r"""A matrix; None for another text, and for a determinant. Round and square brackets are the same.

    >>> matrix(r"2\begin{pmatrix}1&x\\3&4\end{pmatrix}")
    ('matrix 2x2', ('(2)\\cdot(1)', '(2)\\cdot(x)', '(2)\\cdot(3)', '(2)\\cdot(4)'))
    """
    read = _rows(text)
    if read is None or read[1] == "determinant":
        return None
    factor, kind, rows = read
    elements = tuple(x for row in rows for x in row)
    if factor:
        elements = tuple(rf"({factor})\cdot({x})" for x in elements)
    return f"{kind} {'x'.join(str(len(row)) for row in rows)}", elements


def determinant(text: str) -> str | None:
    r"""The value of a determinant of up to four rows, as an expression; None for another text.

    >>> determinant(r"\begin{vmatrix}a&b\\c&d\end{vmatrix}")
    '((a)\\cdot(d)-(b)\\cdot(c))'
    """
    read = _rows(text)
    if read is None or read[1] != "determinant":
        return None
    factor, _, rows = read
    if not 0 < len(rows) <= LARGEST or any(len(row) != len(rows) for row in rows):
        return None
    return rf"({factor})\cdot{_expanded(rows)}" if factor else _expanded(rows)


def _expanded(rows: list[list[str]]) -> str:
    """The determinant along the first row."""
    if len(rows) == 1:
        return f"({rows[0][0]})"
    minors = ([row[:i] + row[i + 1 :] for row in rows[1:]] for i in range(len(rows)))
    terms = [rf"({x})\cdot{_expanded(minor)}" for x, minor in zip(rows[0], minors, strict=True)]
    return f"({terms[0]}{''.join(sign + term for sign, term in zip(cycle('-+'), terms[1:], strict=False))})"


def _rows(text: str) -> tuple[str, str, list[list[str]]] | None:
    """The number in front of a matrix, `matrix` or `determinant`, and the rows."""
    found = _MATRIX.fullmatch(text)
    if found is None:
        return None
    left, kind, right = found["left"].replace(" ", ""), found["kind"], found["right"]
    if (left, right) not in _BRACKETS or (left in tuple("([|") and kind not in ("array", "matrix", "smallmatrix")):
        return None
    factor = _scalar(found["factor"])
    if factor is None or kind == "Vmatrix":  # a norm
        return None
    body = re.split(r"\\\\", found["body"].strip().removesuffix(r"\\"))
    rows = [[x.strip() for x in row.split("&")] for row in body]
    if not all(_is_whole(x) for row in rows for x in row):
        return None
    return factor, "determinant" if kind == "vmatrix" or left in ("|", r"\det", r"\det(") else "matrix", rows


def _scalar(text: str) -> str | None:
    r"""The factor in front of a matrix: a term without capital letters; None for another text."""
    text = re.sub(r"\\(?:cdot|times) ?$", "", text)
    if text in ("+", "-"):
        return f"{text}1"
    if re.search(r"[A-Z=,;^|&<>]|\\(?:vec|begin|cup|pm|in|det)(?![A-Za-z])|[-+/]$", text) or not _is_whole(text):
        return None
    return None if len(split_top(text.lstrip("+-"), _SIGN)) > 1 else text


def _is_whole(text: str) -> bool:
    """Whether each bracket of a text is closed in it."""
    depth = 0
    for c in text.replace(r"\{", "(").replace(r"\}", ")"):
        depth += (c in "({[") - (c in ")}]")
        if depth < 0:
            return False
    return depth == 0
