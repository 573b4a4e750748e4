"""Reads a model's JSON files and checks their sizes, and their fields' types and ranges."""

import json
from collections.abc import Mapping
from pathlib import Path
from reprlib import Repr
from typing import Any

from groupwise.core import BadData, is_nested_deeper

MOST_BYTES = 64 << 20
"""The largest JSON file that is read. The weight index of a model with a trillion parameters has some 10 MB."""
DEPTH = 64
"""Largest nesting depth of lists and objects."""
LARGEST = 1e30
"""The largest number that a configuration may contain."""

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80
short = _REPR.repr
"""A value for an error message: its `repr`, shortened if it is long or deep."""


def json_object(content: bytes, name: str | Path) -> dict[str, Any]:
    """Parse a JSON object; `name` is its file. BadData for anything else, and beyond `MOST_BYTES` or `DEPTH`."""
    fix = "fetch the file again"
    if len(content) > MOST_BYTES:
        raise BadData(f"{name} is too large", evidence=f"more than {MOST_BYTES} bytes", fix=fix)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise BadData(f"{name} is not JSON", evidence=str(error), fix=fix) from error
    except RecursionError as error:
        raise BadData(f"{name} is nested too deep", evidence=f"more than {DEPTH} levels", fix=fix) from error
    if not isinstance(value, dict):
        raise BadData(f"{name} is not a JSON object", evidence=type(value).__name__, fix=fix)
    if is_nested_deeper(value, DEPTH):
        raise BadData(f"{name} is nested too deep", evidence=f"more than {DEPTH} levels", fix=fix)
    return value


def whole(fields: Mapping[str, Any], name: str, *, low: int, high: int, default: int | None = None) -> int:
    """An integer field from `low` to `high`; `default` if it is absent or null.

    KeyError if it is absent and has no default, ValueError for any other value.

    >>> whole({"heads": 4}, "heads", low=1, high=8)
    4
    """
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if value is None and name not in fields:
        raise KeyError(name)
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise ValueError(f"{name} is {short(value)}: it must be a whole number from {low} to {high}")


def real(
    fields: Mapping[str, Any], name: str, *, low: float, high: float = LARGEST, default: float | None = None
) -> float:
    """A finite number from `low` to `high`; `default` if it is absent or null. Raises as `whole` does."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if value is None and name not in fields:
        raise KeyError(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise ValueError(f"{name} is {short(value)}: it must be a number from {low:g} to {high:g}")


def flag(fields: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A boolean field; `default` if it is absent or null. ValueError for any other value."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} is {short(value)}: it must be true or false")


def text(fields: Mapping[str, Any], name: str) -> str:
    """A string field, empty if it is absent or null. ValueError for any other value."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    raise ValueError(f"{name} is {short(value)}: it must be a string")


def mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object field, empty if it is absent or null. ValueError for any other value."""
    value = fields.get(name)
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise ValueError(f"{name} is {short(value)}: it must be an object")
