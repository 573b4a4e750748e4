"""JSON lines: the one writer and the one reader of metrics, timings, samples and replay logs."""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from groupwise.core import Storage

ENCODER = json.JSONEncoder(allow_nan=False)


def json_line(line: Mapping[str, Any]) -> bytes:
    """One line of JSON with keys in the given order. ASCII, so that no character is taken for a line end.

    >>> json_line({"loss": math.nan, "reward": 0.1, "text": "é\\n"})
    b'{"loss": null, "reward": 0.1, "text": "\\\\u00e9\\\\n"}\\n'
    """
    try:
        text = ENCODER.encode(line)
    except (TypeError, ValueError):  # a mapping that is no dict, or a number that is not finite
        text = ENCODER.encode(finite(line))
    return text.encode() + b"\n"


def finite(value: Any) -> Any:
    """A copy of the value with None in place of NaN and infinity, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def json_objects(lines: Iterable[bytes]) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line with the object in it, or None if it is damaged. Leaves out a last line without its newline.

    >>> list(json_objects([b'{"a": 1}\\n', b"7\\n", b'{"a"']))
    [(b'{"a": 1}\\n', {'a': 1}), (b'7\\n', None)]
    """
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            value = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            value = None
        yield line, value if isinstance(value, dict) else None


def parse_lines(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The objects in the complete lines of `data`, the content of the file `path`.

    Raises `Storage` for a damaged line.
    """
    objects: list[dict[str, Any]] = []
    for index, (line, value) in enumerate(json_objects(io.BytesIO(data)), start=1):
        if value is None:
            fix = "restore the file from a backup, or delete the line"
            raise Storage(f"line {index} of {path} is damaged", evidence=repr(line.rstrip(b"\n")[:80]), fix=fix)
        objects.append(value)
    return objects


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; an empty list if it is missing. An incomplete last line is left out.

    Raises `Storage` for a damaged complete line.
    """
    return parse_lines(path, file_bytes(path))


def file_bytes(path: Path) -> bytes:
    """The content of a file; empty if it is missing."""
    return path.read_bytes() if path.exists() else b""
