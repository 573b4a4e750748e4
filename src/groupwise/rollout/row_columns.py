"""Columns of the data rows, such as hints and solutions, that sampling strategies read."""

from collections.abc import Sequence
from typing import Any

from groupwise.core import BadData, Usage
from groupwise.data import Draw, Prompt, ReadsColumns, name_of, with_fields
from groupwise.tasks.row_columns import CHOSEN, COMPLETION, REJECTED, method_of_stored

__all__ = ["check_columns", "column_of", "text_of", "texts_of"]

FILES = {COMPLETION: "demos.jsonl", CHOSEN: "pairs.jsonl", REJECTED: "pairs.jsonl"}
"""A file of rows, as docs/stored.md has it, by the column of stored answers: no packaged task has one."""
OF_HINTED_SUMS = ("answer", "hints", "solution")
"""The columns of the packaged task `hinted_sums`."""
SHAPES = {"text": "a text or a number", "texts": "a text or a list of texts"}
"""What a column may hold, by `column_type` of the component that reads it. A component without it reads any value."""


def column_of(draw: Draw, column: str, part: ReadsColumns) -> Any:
    """The value of a column in the problem's data row, for a component that declares it. `Usage` if it is missing."""
    assert column in part.row_columns
    if column not in draw.prompt.row:
        raise _missing(column, part, [draw.prompt])
    return draw.prompt.row[column]


def text_of(draw: Draw, column: str, part: ReadsColumns) -> str:
    """The text in a column; empty if the row lacks it and the component skips such rows. `BadData` for others."""
    if column not in draw.prompt.row and _skips(part):
        return ""
    value = column_of(draw, column, part)
    if not _is_text(value):
        raise _unreadable(column, part, "text", draw.prompt)
    return str(value)


def texts_of(draw: Draw, column: str, part: ReadsColumns) -> list[str]:
    """The texts in a column: a text is a list of one. Empty if the row lacks it and the component skips such rows.

    `BadData` for other values.
    """
    if column not in draw.prompt.row and _skips(part):
        return []
    value = column_of(draw, column, part)
    if not _is_texts(value):
        raise _unreadable(column, part, "texts", draw.prompt)
    return [value] if isinstance(value, str) else list(value)


def check_columns(strategy: Any, prompts: Sequence[Prompt]) -> list[str]:
    """`Usage` if rows lack a column that the strategy, or a component of it, reads; `BadData` if a value is unreadable.

    A component with `column_optional` leaves rows without the column alone: returns a note for it, unless all rows lack
    it. Reads no other part of the method.
    """
    notes: list[str] = []
    for part in with_fields(strategy):
        for column in part.row_columns if isinstance(part, ReadsColumns) else ():
            lacking = [prompt for prompt in prompts if column not in prompt.row]
            count = f"{len(lacking)} of {len(prompts):,} rows"
            if lacking and not (_skips(part) and len(lacking) < len(prompts)):
                raise _missing(column, part, lacking, f": {count} lack it")
            if lacking:
                notes.append(f"{count} have no column {column!r}: {name_of(part)} leaves their groups as they are")
            shape = getattr(part, "column_type", "")
            fits = {"text": _is_text, "texts": _is_texts}.get(shape, lambda value: True)
            if faulty := [p for p in prompts if column in p.row and not fits(p.row[column])]:
                count = f": {len(faulty)} of {len(prompts):,} rows have another value"
                raise _unreadable(column, part, shape, faulty[0], count)
    return notes


def _skips(part: Any) -> bool:
    return getattr(part, "column_optional", False)


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(isinstance(x, str) for x in value))


def _missing(column: str, part: ReadsColumns, prompts: Sequence[Prompt], count: str = "") -> Usage:
    name, first = name_of(part), prompts[0]
    if column in FILES:
        fix = method_of_stored(first.row) or f"name a file whose rows have it: --task {FILES[column]}; docs/stored.md"
    elif column in OF_HINTED_SUMS:
        fix = f"use a task whose rows have it, such as hinted_sums, or set the field of {name} that names the column"
    else:
        fix = f"use rows that have it, or set the field of {name} that names the column"
    return Usage(
        f"{name} needs the column {column!r} of {'some rows' if _skips(part) else 'each row'}{count}",
        evidence=f"the row of {first.id} has {', '.join(map(str, first.row)) or 'no columns'}",
        fix=fix,
    )


def _unreadable(column: str, part: ReadsColumns, shape: str, prompt: Prompt, count: str = "") -> BadData:
    return BadData(
        f"{name_of(part)} reads {SHAPES[shape]} in the column {column!r}{count}",
        evidence=f"the row of {prompt.id}: {prompt.row[column]!r:.100}",
        fix=f"write {SHAPES[shape]}" + (", also an empty list" if shape == "texts" else ""),
    )
