"""Reads the pictures of a data row: the column `images` or `image`, and the parts of its messages that are pictures."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.core import BadData, open_regular
from groupwise.data import Picture
from groupwise.data.pictures import MOST_PICTURES
from groupwise.models.picture_messages import count_pictures
from groupwise.models.vision.picture_pixels import MOST_BYTES, decode_picture
from groupwise.tasks.data_sets import HUB
from groupwise.tasks.read_rows import DataRowError, Row, kind_of

PICTURE_COLUMNS = ("images", "image")
PICTURE_ADVICE = (
    'name a file beside the rows, "image": "pictures/1.png", or a list of them in "images", one for each\n'
    "picture in the messages: docs/pictures.md"
)
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|data:")


def pictures_of(row: Row, problem: Any, source: str, encode: Callable[..., Any]) -> tuple[Picture, ...]:
    """The pictures of a row of a source, if `encode` is the template of a model that takes some.

    Raises `DataRowError`, also for messages with pictures that the model does not take.
    """
    if getattr(encode, "takes_pictures", False):
        path = Path(source)
        folder = None if source.startswith(HUB) else path if path.is_dir() else path.parent
        try:
            return row_pictures(row, problem, folder)
        except DataRowError as fault:
            fault.fix = PICTURE_ADVICE
            raise
    if not isinstance(problem, str) and count_pictures(problem):
        raise DataRowError("its messages have pictures, and the model takes none: take a vision-language model")
    return ()


def without_pictures(row: Row) -> Row:
    """A row without the columns of its pictures."""
    return {name: value for name, value in row.items() if name not in PICTURE_COLUMNS}


def hashes_of(pictures: Sequence[Picture]) -> dict[str, Any]:
    """What the content hash of a source has of a row's pictures."""
    return {"pictures": [picture.sha256 for picture in pictures]} if pictures else {}


def row_pictures(row: Row, problem: Any, folder: Path | None) -> tuple[Picture, ...]:
    """The pictures of a row, in their order. Raises `DataRowError`.

    A picture is the path of a file below `folder`, the bytes of a file, or an `Image` of the library `datasets` that is
    not decoded: `{"bytes": ..., "path": ...}`. Messages with parts that are pictures have as many as the row.
    """
    names = [name for name in PICTURE_COLUMNS if row.get(name) is not None]
    if len(names) > 1:
        raise DataRowError("it has the columns 'images' and 'image': keep one")
    value = row[names[0]] if names else []
    values = value if isinstance(value, list | tuple) else [value]
    if len(values) > MOST_PICTURES:
        raise DataRowError(f"it has {len(values)} pictures: {MOST_PICTURES} are the most")
    parts = 0 if isinstance(problem, str) else count_pictures(problem)
    if parts and parts != len(values):
        raise DataRowError(f"its messages have {parts} pictures, and its columns {len(values)}")
    try:
        return tuple(decode_picture(_bytes_of(one, folder)) for one in values)
    except BadData as error:
        raise DataRowError(error.what) from None


def _bytes_of(value: Any, folder: Path | None) -> bytes:
    """The bytes of a picture's file."""
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise DataRowError(f"a picture is {kind_of(value)}: it must be the path or the bytes of a file")
    if URL.match(value):
        raise DataRowError(f"a picture is the URL {value[:80]!r}, and pictures are not fetched: store its file")
    if folder is None:
        raise DataRowError(
            f"a picture is a path, {value[:80]!r}, and the data set is no file: store the bytes in the rows"
        )
    return _read_below(folder, value)


def _read_below(folder: Path, name: str) -> bytes:
    """The bytes of a file below a folder. Raises `DataRowError`, also for a path or a link that leaves the folder."""
    shown = repr(name[:80])
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise DataRowError(f"the picture {shown} is not below the directory of the data")
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # a null character is a ValueError
        why = getattr(error, "strerror", None) or error
        raise DataRowError(f"the picture {shown} cannot be read ({why})") from None
    return data


def plain_messages(problem: Sequence[Any]) -> list[Any]:
    """Messages whose content is text where all its parts are texts, else parts of the two known types.

    Raises `DataRowError` for other parts.

    >>> parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
    >>> plain_messages([{"role": "user", "content": parts}])
    [{'role': 'user', 'content': 'Hi you'}]
    """
    messages: list[Any] = []
    for message in problem:
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list):
            messages.append(message)
            continue
        parts = [_part(part) for part in content]
        only_text = all(part["type"] == "text" for part in parts)
        messages.append({**message, "content": "".join(part["text"] for part in parts) if only_text else parts})
    return messages


def _part(part: Any) -> dict[str, Any]:
    """A part of a message without empty fields, which tables add to rows."""
    fields = {k: v for k, v in part.items() if v is not None} if isinstance(part, Mapping) else {}
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return {"type": "text", "text": fields["text"]}
    if fields.get("type") == "image" and fields.keys() == {"type"}:
        return {"type": "image"}
    example = '{"type": "image"} or {"type": "text", "text": ...}'
    raise DataRowError(
        f"a part of a message is {str(part)[:80]}: it must be {example}; pictures are in the column images"
    )
