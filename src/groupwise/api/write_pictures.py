"""Writes the pictures of data rows in memory (bytes, images of Pillow) as files, so that the rows are plain JSON."""

from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from groupwise.core import BadData
from groupwise.runs.atomic_writes import storage_errors, write_file
from groupwise.tasks.row_pictures import PICTURE_COLUMNS

FOLDER = "pictures"
"""The folder beside the rows. A file's name is the hash of its bytes."""


def with_written_pictures(row: Mapping[str, Any], number: int, directory: Path) -> dict[str, Any]:
    """The row with a path below `directory` for each of its pictures that is no path.

    `number` counts rows from 1. `BadData` for an image that cannot be written as PNG.
    """
    return {
        name: _written(value, number, directory) if name in PICTURE_COLUMNS else value for name, value in row.items()
    }


def _written(value: Any, number: int, directory: Path) -> Any:
    if isinstance(value, list | tuple):
        return [_written(one, number, directory) for one in value]
    data = value.get("bytes") if isinstance(value, Mapping) else value
    if type(data).__module__.startswith("PIL.") and callable(getattr(data, "save", None)):
        data = _as_png(data, number)
    if not isinstance(data, bytes | bytearray | memoryview):
        return value
    name = f"{FOLDER}/{sha256(data).hexdigest()[:32]}"
    if not (directory / name).is_file():
        with storage_errors(FOLDER, directory):
            (directory / FOLDER).mkdir(parents=True, exist_ok=True)
            write_file(directory / name, bytes(data))
    return name


def _as_png(image: Any, number: int) -> bytes:
    """The PNG file of an image of Pillow, without its metadata."""
    file = BytesIO()
    try:
        image.save(file, "PNG", exif=b"")
    except (OSError, ValueError) as error:  # a mode that PNG lacks, or a file that ends early
        what, fix = f"row {number} of data has an image that cannot be written", 'convert it: image.convert("RGB")'
        raise BadData(what, evidence=f"mode {image.mode}: {error}", fix=fix) from None
    return file.getvalue()
