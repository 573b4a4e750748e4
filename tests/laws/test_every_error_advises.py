"""The catalogue of the package's errors: each says what happened in one line, and what was seen or what to do.

Tests that expect an error name its class and the words that carry data; its sentence is read here, for all of them.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupwise.core import errors

SOURCE = Path(errors.__file__).parents[1]
CLASSES = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.GroupwiseError)}
NAMES = ("CyclicValues", "ClaimPressureStrategy", "Ray")
"""Names with which a line begins, which begins with no capital letter otherwise."""
ANSWERS = ("engines/remote/server.py",)
"""Replies of a server to bytes that no client of ours sends: there is nobody to advise."""


def text_of(value: ast.expr | None) -> str:
    """A text as far as it is known: each value is `{}`, and of alternatives the longer one counts."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=other):
            return max(text_of(body), text_of(other), key=len)
        case None:
            return ""
    return "{}"


def faults_of(source: str, file: str = "") -> Iterator[tuple[int, str]]:
    """The line of each error that a source constructs and what it lacks."""
    for node in ast.walk(ast.parse(source)):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if name not in CLASSES or not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        what, seen, fix = text_of(node.args[0] if node.args else None), given.get("evidence"), given.get("fix")
        lost = issubclass(CLASSES[name], errors.WorkerLost) or "errors" in what  # a process; several errors as one
        if not what.strip() or re.search(r"[.!\n]$", what):
            yield node.lineno, f"no line that says what happened: {what!r}"
        if re.match(r"[A-Z][a-z]+ ", what) and not what.startswith(NAMES):
            yield node.lineno, f"a line that begins with a capital letter: {what!r}"
        if fix is None and not (lost and seen is not None) and file not in ANSWERS:
            yield node.lineno, f"no fix: {what!r}"
        if fix is not None and re.search(r"^$|^[A-Z][a-z]+ |[.!]$", text_of(fix)):
            yield node.lineno, f"a fix that is no instruction: {text_of(fix)!r}"


def test_every_error_says_what_happened_and_what_to_do() -> None:
    files = {str(path.relative_to(SOURCE)): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}
    constructed = sum(len(re.findall(rf"\b(?:{'|'.join(CLASSES)})\(", text)) for text in files.values())
    assert constructed > 500
    found = [f"{file}:{line}: {what}" for file, text in files.items() for line, what in faults_of(text, file)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'raise Usage("no task is called x")',
        'raise Usage("no task is called x", fix="")',
        'raise Usage("No task is called x.", fix="give another")',
        'raise Usage("no task is called x.", fix="give another")',
        'raise Usage("", fix="give another")',
        'raise BadData("a row is damaged", evidence="row 3")',
        'raise WorkerLost("an engine is gone")',
        'raise Usage("no task is called x", fix="Give another.")',
    ],
)
def test_an_error_that_lacks_something_is_found(source: str) -> None:
    assert len(list(faults_of(source))) >= 1
    assert list(faults_of('raise WorkerLost("an engine is gone", evidence=lines)')) == []
    assert list(faults_of('raise Usage(f"no task is called {name}", fix=f"did you mean {near}?")')) == []
