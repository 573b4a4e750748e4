"""Pictures in Python: bytes and images of Pillow. Those of data rows are written as files: the rows are plain JSON."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from groupwise.core import BadData, Usage
from groupwise.data import Picture
from groupwise.models import decode_picture, read_picture
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
    if _is_image(data):
        data = _as_png(data, f"row {number} of data has an image")
    if not isinstance(data, bytes | bytearray | memoryview):
        return value
    name = f"{FOLDER}/{sha256(data).hexdigest()[:32]}"
    if not (directory / name).is_file():
        with storage_errors(FOLDER, directory):
            (directory / FOLDER).mkdir(parents=True, exist_ok=True)
            write_file(directory / name, bytes(data))
    return name


def pictures_of_images(images: Sequence[Any]) -> tuple[Picture, ...]:
    """The pictures in files (paths), in bytes of files, and in images of Pillow. `Usage` for anything else."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise Usage(f"images is {type(images).__name__}", fix="pass a list, such as images=['0.png']")
    return tuple(map(_picture_of, images))


def _picture_of(image: Any) -> Picture:
    if isinstance(image, str | PathLike):
        return read_picture(Path(image))
    data = _as_png(image, "images has an image") if _is_image(image) else image
    if not isinstance(data, bytes | bytearray | memoryview):
        raise Usage(f"images has {type(image).__name__}", fix="pass a path, the bytes of a file, or an image of Pillow")
    return decode_picture(bytes(data))


def _is_image(value: Any) -> bool:
    """Whether a value is an image of Pillow, which is not imported here."""
    return type(value).__module__.startswith("PIL.") and callable(getattr(value, "save", None))


def _as_png(image: Any, place: str) -> bytes:
    """The PNG file of an image of Pillow, without its metadata."""
    file = BytesIO()
    try:
        image.save(file, "PNG", exif=b"")
    except (OSError, ValueError) as error:  # a mode that PNG lacks, or a file that ends early
        what, fix = f"{place} that cannot be written", 'convert it: image.convert("RGB")'
        raise BadData(what, evidence=f"mode {image.mode}: {error}", fix=fix) from None
    return file.getvalue()
