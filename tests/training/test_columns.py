"""A run whose rows lack a column that a strategy reads, such as hints, is refused before it starts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise.core import BadData, GroupwiseError
from groupwise.data import ReadsColumns, with_fields
from groupwise.methods import published
from groupwise.rollout import Stored
from tests.checks import check

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 6) for b in range(2, 6)]
METHODS = [method for method in published if not isinstance(method().strategy, Stored)]
"""Without those of stored answers, whose rows have forms of their own: tests/tasks/test_stored_rows.py."""
READERS = {
    method.__name__: {c for p in with_fields(method().strategy) if isinstance(p, ReadsColumns) for c in p.row_columns}
    for method in METHODS
}


def errors(
    tmp_path: Path, rows: list[dict], *overrides: tuple[str, str], notify: Callable[[str], None] = lambda line: None
) -> list[GroupwiseError]:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = check(None, [("task", str(file)), ("verifier", "last_number"), *overrides], notify=notify)
    return [error for error in found if "needs the subscore" not in error.what]  # of tests/training/test_needs.py


def test_the_methods_that_read_columns() -> None:
    assert {name for name, columns in READERS.items() if columns - {"answer"}} == {
        "dagrpo", "guide_grpo", "hill", "sage_hint", "scaf_grpo",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name, columns in READERS.items() if columns - {"answer"}])
def test_rows_without_the_column_are_refused_and_rows_with_it_are_not(name: str, tmp_path: Path) -> None:
    (error,) = errors(tmp_path, ROWS, ("method", name))
    (column,) = READERS[name] - {"answer"}
    assert error.what.startswith("method.strategy: ") and f"needs the column '{column}' of some rows" in error.what
    assert "has answer" in error.evidence and "hinted_sums" in error.fix
    assert not errors(tmp_path, [{**row, column: "x"} for row in ROWS], ("method", name))


@pytest.mark.parametrize("name", [name for name, columns in READERS.items() if columns - {"answer"}])
def test_rows_without_the_column_are_left_alone_and_counted(name: str, tmp_path: Path) -> None:
    (column,) = READERS[name] - {"answer"}
    rows = [{**row, column: "x" if i > 2 else None} for i, row in enumerate(ROWS)]
    lines: list[str] = []
    assert not errors(tmp_path, rows, ("method", name), notify=lines.append)
    (note,) = [line for line in lines if "rows have no column" in line]
    assert note.startswith("  note: method.strategy: 3 of 18 rows") and column in note


@pytest.mark.parametrize("name", [name for name, columns in READERS.items() if columns - {"answer"}])
@pytest.mark.parametrize("value", [{"a": "b"}, ["x", 1], [["x"]]])
def test_a_column_of_another_type_is_refused_with_its_row(name: str, value: object, tmp_path: Path) -> None:
    (column,) = READERS[name] - {"answer"}
    rows = [{**row, column: value if i == 5 else "x"} for i, row in enumerate(ROWS)]
    (error,) = errors(tmp_path, rows, ("method", name))
    assert isinstance(error, BadData) and f"in the column '{column}': 1 of 18 rows" in error.what
    assert error.evidence == f"the row of rows/6: {value!r}"


def test_the_readers_of_columns_say_what_they_can_read() -> None:
    """Each part of the package that reads columns of the rows does so by `text_of` or `texts_of`."""
    parts = [p for m in METHODS for p in with_fields(m().strategy) if isinstance(p, ReadsColumns)]
    assert {getattr(part, "column_type", None) for part in parts} == {"text", "texts"}


def test_evaluation_reads_the_held_out_rows(tmp_path: Path) -> None:
    pressed = ("evaluate.strategy", '{kind = "ClaimPressureStrategy", answer_column = "claim"}')
    (error,) = errors(tmp_path, ROWS, pressed)
    assert (
        error.what
        == "evaluate.strategy: ClaimPressureStrategy needs the column 'claim' of each row: 2 of 2 rows lack it"
    )
    assert not errors(tmp_path, [{**row, "claim": "7"} for row in ROWS], pressed)
