"""Columns of data rows that hold a truth value or a number, as JSON or as the texts of a CSV file."""

from math import isfinite, nan

from groupwise.tasks.read_rows import DataRowError, Row, kind_of

__all__ = []

TRUTH_TEXTS = {"true": True, "false": False, "1": True, "0": False}
"""The texts of a truth value in a CSV file, in lower case."""


def truth_in(row: Row, name: str) -> bool:
    """The truth value in a column. Raises `DataRowError` for any other value, also for a number of JSON.

    >>> truth_in({"label": False}, "label"), truth_in({"label": "False"}, "label"), truth_in({"label": "1"}, "label")
    (False, False, True)
    """
    value = row[name]
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and (word := value.strip().lower()) in TRUTH_TEXTS:
        return TRUTH_TEXTS[word]
    raise DataRowError(f"field {name!r} is {shown(value)}: it must be true or false")


def number_in(row: Row, name: str) -> float:
    """The finite number in a column; one of JSON as it is. Raises `DataRowError` for any other value.

    >>> number_in({"margin": 2}, "margin"), number_in({"margin": "0.5"}, "margin")
    (2, 0.5)
    """
    value = row[name]
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = nan
    if not isfinite(number):
        raise DataRowError(f"field {name!r} is {shown(value)}: it must be a finite number")
    return number if isinstance(value, str) else value


def shown(value: object) -> str:
    """A value in a message: a text or a number itself, of others the kind."""
    return f"{value!r:.40}" if isinstance(value, str | int | float) else kind_of(value)
