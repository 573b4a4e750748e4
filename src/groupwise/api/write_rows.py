"""Writes data rows of a Python program (dicts in memory) to a JSON-lines file, which becomes the task."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from groupwise.api.table_rows import is_nan, plain_cell, table_rows
from groupwise.api.write_pictures import with_written_pictures
from groupwise.config.recipe import Columns
from groupwise.core import BadData, Usage
from groupwise.data import TaskSettings
from groupwise.runs.atomic_writes import storage_errors, write_file
from groupwise.tasks.source_stats import listed

ANSWER = Columns().answer
"""The name of the column of gold answers, unless a recipe names another."""
EXAMPLE = '{"prompt": "1+1=", "answer": "2"}'


def rows_in_memory(data: object, name: str = "data") -> list[Mapping[str, Any]] | None:
    """Convert the argument `name` to rows: dicts, a `datasets.Dataset`, a data frame, a dict of columns.

    None for a path, a name or a task.
    Raises `Usage` for anything else, `BadData` for a row that is no dict.
    """
    if isinstance(data, str | Path | TaskSettings) or (isinstance(data, Mapping) and isinstance(data.get("kind"), str)):
        return None
    if (table := table_rows(data, name)) is not None:
        data = table
    if not isinstance(data, Iterable):
        raise Usage(
            f"{name} is {type(data).__name__}", fix="pass a list of dicts, a datasets.Dataset, a path or a name"
        )
    rows = list(data)
    for index, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            what = f"row {index} of {name} is {type(row).__name__}, not a dict"
            raise BadData(what, evidence=repr(row)[:80], fix=f"pass a list of dicts such as {EXAMPLE}")
    if not rows:
        raise BadData(f"{name} has no rows", evidence="0 rows", fix=f"pass rows such as {EXAMPLE}")
    return rows


def answer_column(rows: Iterable[Mapping[str, Any]], columns: Any, *, explicit: bool) -> str:
    """The column with the gold answers of data rows: named by a recipe's `columns`, or `answer`; empty without answers.

    Some rewards, such as one for the length, need none. A column that the call names itself (`explicit`) always holds.

    >>> answer_column([{"question": "1+1="}], {"prompt": "question"}, explicit=False)
    ''
    """
    column = columns.get("answer", ANSWER) if isinstance(columns, Mapping) else ANSWER
    if explicit and column != ANSWER:
        return column
    return next((name for name in (column, ANSWER) if name and has_answers(rows, name)), "")


def has_answers(rows: Iterable[Mapping[str, Any]], column: str) -> bool:
    """Whether any data row has a value in the column, which may be a dotted path."""
    return any(row.get(name) is not None for row in rows for name in (column, column.partition(".")[0]))


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write data rows as JSON lines, atomically, and their pictures as files beside them.

    `BadData` names a column that is not plain JSON.
    """
    rows = [with_written_pictures(row, number, path.parent) for number, row in enumerate(rows, start=1)]
    rows = [{name: plain_cell(value) for name, value in row.items()} for row in rows]
    check_no_nan(rows)
    lines = [_line(index, row) for index, row in enumerate(rows, start=1)]
    with storage_errors(path.name, path.parent):
        write_file(path, "".join(lines).encode())


def check_no_nan(rows: Iterable[Mapping[str, Any]]) -> None:
    """`BadData` for columns with NaN, which data frames have for missing values, with the rows."""
    found: dict[str, list[int]] = {}
    for index, row in enumerate(rows, start=1):
        for name in (name for name, value in row.items() if is_nan(value)):
            found.setdefault(name, []).append(index)
    if found:
        lines = [f"column {name!r} is NaN in {listed(tuple(numbers))}" for name, numbers in found.items()]
        names = ", ".join(map(repr, found))
        fix = f"leave these rows out, or write a value: frame.dropna(subset=[{names}]), or None where it is not needed"
        raise BadData("NaN in data is no value", evidence="\n".join(lines), fix=fix)


def _line(index: int, row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError):
        column = next((name for name, value in row.items() if not _is_json(value)), "")
        kind = type(row.get(column)).__name__
        raise BadData(
            f"row {index} of data is not plain JSON",
            evidence=f"column {column!r} is {kind}",
            fix=f"convert the column, or leave it out: {{k: v for k, v in row.items() if k != {column!r}}}",
        ) from None


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
