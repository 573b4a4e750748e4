"""Rows of tables in memory: data frames, Arrow tables, dicts of columns. None of their packages is imported."""

from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.core import BadData, Usage


def table_rows(data: object, name: str) -> Iterable[Any] | None:
    """The rows of a data frame (pandas, polars), an Arrow table or a dict of columns; None for anything else.

    `Usage` for a dict of splits or of columns with different lengths.

    >>> table_rows({"prompt": ["1+1=", "1+2="], "answer": [2, 3]}, "data")
    [{'prompt': '1+1=', 'answer': 2}, {'prompt': '1+2=', 'answer': 3}]
    """
    table: Any = data
    for method in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if callable(getattr(table, method, None)):
            return getattr(table, method)()
    if callable(getattr(table, "to_dict", None)) and hasattr(table, "columns"):  # pandas
        return table.to_dict("records")
    return column_rows(data, name) if isinstance(data, Mapping) else None


def column_rows(columns: Mapping[Any, Any], name: str) -> Iterable[Any]:
    """The rows of a dict of columns, of a dict with one split, or of pandas' `to_dict()`."""
    values = {str(key): _column(value) for key, value in columns.items()}
    lists = {key: value for key, value in values.items() if isinstance(value, list)}
    has_rows = all(value and all(isinstance(row, Mapping) for row in value) for value in lists.values())
    if len(lists) < len(values) or has_rows:
        if len(values) == 1:
            return next(iter(columns.values()))
        keys = ", ".join(values)
        fix = f'pass one of its splits: {name}=sets["{next(iter(values), "train")}"]'
        raise Usage(f"{name} is a dict, and its values are not columns", evidence=f"its keys are {keys}", fix=fix)
    lengths = {key: len(value) for key, value in lists.items()}
    if len(set(lengths.values())) > 1:
        evidence = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise BadData(f"the columns of {name} have different lengths", evidence=evidence, fix="make them equal")
    return [dict(zip(lists, row)) for row in zip(*lists.values())]


def _column(value: object) -> object:
    """A column as a list: a tuple, an array, a series, or a dict from row numbers."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping) and value and all(isinstance(key, int) for key in value):
        return list(value.values())
    if hasattr(value, "tolist") and not hasattr(value, "column_names"):
        return value.tolist()  # type: ignore[attr-defined]
    return value


def plain_cell(value: Any) -> Any:
    """A cell whose arrays and numbers of NumPy are plain lists and numbers."""
    if type(value).__module__.partition(".")[0] == "numpy" and callable(convert := getattr(value, "tolist", None)):
        return convert()
    if isinstance(value, Mapping):
        return {str(key): plain_cell(inner) for key, inner in value.items()}
    return [plain_cell(inner) for inner in value] if isinstance(value, list | tuple) else value


def is_nan(value: object) -> bool:
    """Whether a cell is NaN, or pandas' mark of a missing value."""
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
