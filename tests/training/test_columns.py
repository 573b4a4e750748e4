"""A run whose rows lack a column that a strategy reads, such as hints, is refused before it starts."""

import json
from pathlib import Path

import pytest

from groupwise.data import GroupwiseError, ReadsColumns, with_fields
from groupwise.methods import published
from groupwise.training.check import check

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 6) for b in range(2, 6)]
READERS = {
    method.__name__: {c for p in with_fields(method().strategy) if isinstance(p, ReadsColumns) for c in p.row_columns}
    for method in published
}


def errors(tmp_path: Path, rows: list[dict], *overrides: tuple[str, str]) -> list[GroupwiseError]:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return check(None, [("task", str(file)), ("verifier", "last_number"), *overrides])


def test_the_methods_that_read_columns() -> None:
    assert {name for name, columns in READERS.items() if columns - {"answer"}} == {
        "dagrpo", "guide_grpo", "hill", "sage_hint", "scaf_grpo",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name, columns in READERS.items() if columns - {"answer"}])
def test_rows_without_the_column_are_refused_and_rows_with_it_are_not(name: str, tmp_path: Path) -> None:
    (error,) = errors(tmp_path, ROWS, ("method", name))
    (column,) = READERS[name] - {"answer"}
    assert error.what.startswith("method.strategy: ") and f"needs the column '{column}' of each row" in error.what
    assert "has answer" in error.evidence and "hinted_sums" in error.fix
    assert not errors(tmp_path, [{**row, column: ["x"]} for row in ROWS], ("method", name))


def test_a_row_with_null_lacks_the_column(tmp_path: Path) -> None:
    rows = [{**row, "hints": ["x"] if i > 2 else None} for i, row in enumerate(ROWS)]
    (error,) = errors(tmp_path, rows, ("method", "scaf_grpo"))
    assert ": 3 of 18 rows lack it" in error.what and error.evidence == "the row of rows/1 has answer"
    assert not errors(tmp_path, rows)


def test_evaluation_reads_the_held_out_rows(tmp_path: Path) -> None:
    pressed = ("evaluate.strategy", '{kind = "Pressed", column = "claim"}')
    (error,) = errors(tmp_path, ROWS, pressed)
    assert error.what == "evaluate.strategy: Pressed needs the column 'claim' of each row: 2 of 2 rows lack it"
    assert not errors(tmp_path, [{**row, "claim": "7"} for row in ROWS], pressed)
