"""Columns of the data rows, such as hints and solutions, that sampling strategies read."""

from collections.abc import Sequence
from typing import Any

from groupwise.data import Draw, Prompt, ReadsColumns, Usage, name_of, with_fields

__all__ = ["check_columns", "column_of"]


def column_of(draw: Draw, column: str, part: ReadsColumns) -> Any:
    """The value of a column in the problem's data row, for a part that declares it. `Usage` if the row lacks it."""
    assert column in part.row_columns
    if column not in draw.prompt.row:
        raise _missing(column, part, [draw.prompt])
    return draw.prompt.row[column]


def check_columns(strategy: Any, prompts: Sequence[Prompt]) -> None:
    """`Usage` if a row lacks a column that the strategy, or a part of it, reads. Reads no other part of the method."""
    for part in with_fields(strategy):
        for column in part.row_columns if isinstance(part, ReadsColumns) else ():
            if lacking := [prompt for prompt in prompts if column not in prompt.row]:
                raise _missing(column, part, lacking, f": {len(lacking)} of {len(prompts)} rows lack it")


def _missing(column: str, part: ReadsColumns, prompts: Sequence[Prompt], count: str = "") -> Usage:
    name, first = name_of(part), prompts[0]
    return Usage(
        f"{name} needs the column {column!r} of each row{count}",
        evidence=f"the row of {first.id} has {', '.join(map(str, first.row)) or 'no columns'}",
        fix=f"use a task whose rows have it, such as hinted_sums, or set the field of {name} that names the column",
    )
