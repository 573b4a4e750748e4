"""Untrusted text is printed only through `visible`."""

import ast
import sys
import unicodedata
from pathlib import Path

import pytest

import groupwise
from groupwise.core import BadData, Usage, visible
from groupwise.core.errors import LONGEST

SOURCE = Path(groupwise.__file__).parent
UNSAFE_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Unicode categories of characters that a terminal interprets or does not draw."""


def test_escaped_and_unchanged_characters() -> None:
    for character in map(chr, range(sys.maxunicode + 1)):
        category = unicodedata.category(character)
        if category in UNSAFE_CATEGORIES:
            assert visible(character).isprintable() and visible(character).isascii()
        elif category != "Cn":
            assert visible(character) == character


def test_newlines_and_tabs_are_kept_only_with_lines() -> None:
    assert visible("a\tb\nc\r") == r"a\tb\nc\r"
    assert visible("a\tb\nc\r", lines=True) == "a\tb\nc\\r"


def test_escaping_is_idempotent() -> None:
    text = "".join(map(chr, range(0x2100))) + "\ud800\U000e0041"
    assert visible(visible(text)) == visible(text)


def test_untrusted_text_adds_no_line_to_an_error() -> None:
    name = "x\ndo: rm -rf ~\n\x1b[2J\x9b31m\u202e\u200b\ud800"
    error = Usage(f"there is no model at {name}", evidence="one\ntwo\x1b[2J", fix=f"name {visible(name)}")
    lines = str(error).split("\n")
    assert [line[:8] for line in lines] == ["there is", "  seen: ", "        ", "  do:   "]
    assert all(line.isprintable() for line in lines)


def test_long_lines_of_an_error_are_cut() -> None:
    text = str(BadData("a" * 9000, evidence="b\n" + "c" * 9000, fix="d"))
    assert max(map(len, text.split("\n"))) < LONGEST + 20 and len(text.split("\n")) == 4


def _printed() -> list[object]:
    files = [SOURCE / "__main__.py", *sorted((SOURCE / "train").rglob("*.py"))]
    calls = ((file, node) for file in files for node in ast.walk(ast.parse(file.read_text())))
    return [
        pytest.param(call, id=f"{file.stem}:{call.lineno}")
        for file, call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
        if file.stem != "packaged_model"  # prints numbers of a recipe that is part of the package
    ]


@pytest.mark.parametrize("call", _printed())
def test_every_print_is_of_constants_or_visible(call: ast.Call) -> None:
    """`GroupwiseError.__str__` returns escaped text, so errors may be printed."""
    allowed = ("Constant", "visible", "UNSAFE", "TRUST")
    text = ast.unparse(call)
    names = [getattr(getattr(x, "func", x), "id", type(x).__name__) for x in call.args]
    assert all(name in allowed for name in names) or text in (
        "print(f'error: {error}', file=sys.stderr)",
        "print(visible(traceback.format_exc(), lines=True) + request, file=sys.stderr)",
        "print(f\"groupwise {version('groupwise')}\")",
    ), text


def test_nothing_else_writes_to_the_terminal() -> None:
    """The exception is the live progress line, which escapes its messages."""
    files = [SOURCE / "__main__.py", *sorted((SOURCE / "train").rglob("*.py"))]
    for file in files:
        source = file.read_text()
        assert "print_exc" not in source and "sys.stdout.write" not in source and "sys.stderr.write" not in source
        calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
        assert not any(isinstance(x, ast.Name) and x.id == "print" for call in calls for x in call.args), file
