"""Each number of the conformance list that is due marks at least one test."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DUE = {*range(1, 45), *range(46, 54)}
"""Left for later: T45 (asynchronous training)."""


def numbers_of(path: Path) -> Iterator[int]:
    """The `n` of every `@pytest.mark.t(n)` on a test function or a class of tests, and of a module's `pytestmark`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            marks: list[ast.AST] = list(node.decorator_list)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = list(node.decorator_list)
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
        ):
            marks = [node.value]
        else:
            continue
        for call in (inner for mark in marks for inner in ast.walk(mark) if isinstance(inner, ast.Call)):
            if ast.unparse(call.func) == "pytest.mark.t":
                yield from (ast.literal_eval(n) for n in call.args)


def test_only_marks_on_tests_count(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(
        "@pytest.mark.t(1)\ndef helper(): ...\n"
        "@pytest.mark.t(2)\n@pytest.mark.slow\ndef test_a(): 'pytest.mark.t(3)'\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.t(4))])\ndef test_b(x): ...\n"
        "pytestmark = [pytest.mark.t(5)]\n# @pytest.mark.t(6)\n"
    )
    assert sorted(numbers_of(path)) == [2, 4, 5]


@pytest.fixture(scope="module")
def marked() -> set[int]:
    """The numbers of all tests."""
    return {n for path in TESTS.rglob("test_*.py") for n in numbers_of(path)}


def test_each_number_that_is_due_marks_a_test(marked: set[int]) -> None:
    assert not (missing := sorted(DUE - marked)), f"no test has the mark of {', '.join(f'T{n}' for n in missing)}"


def test_no_mark_is_outside_the_list(marked: set[int]) -> None:
    assert marked <= set(range(1, 54))
