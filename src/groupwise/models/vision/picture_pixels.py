"""Pictures from pixels and from files of strangers, which a worker process decodes."""

import atexit
import hashlib
import struct
from base64 import b64decode, b64encode
from pathlib import Path

import numpy as np

from groupwise.core import BadData, read_regular
from groupwise.data import Picture
from groupwise.models.flow.denoising_actions import Pixels
from groupwise.models.flow.latent_pictures import png, read_png
from groupwise.models.line_worker import LineWorker

__all__ = ["decode_picture", "picture_of_pixels", "pixels_of_picture", "read_picture"]

WORKER = Path(__file__).with_name("picture_worker.py")
MOST_BYTES = 32 << 20
"""The largest file of a picture."""
MOST_PIXELS = 1 << 24
"""The most pixels that the worker may send back."""
DEADLINE = 120.0
"""Seconds of one picture, whose CPU time the worker limits; a loaded machine may need many more seconds for it."""


def picture_of_pixels(pixels: Pixels) -> Picture:
    """The picture with these RGB pixels [rows, columns, 3].

    >>> dark = picture_of_pixels(np.zeros((1, 2, 3), np.uint8))
    >>> dark.width, dark.height, pixels_of_picture(dark).tolist()
    (2, 1, [[[0, 0, 0], [0, 0, 0]]])
    """
    rows, columns, _ = pixels.shape
    return Picture(columns, rows, _hash(pixels), png(pixels))


def pixels_of_picture(picture: Picture) -> Pixels:
    """The RGB pixels [rows, columns, 3] of a picture, which may be from another process.

    ValueError if they are not those that its size and its hash name.
    """
    pixels = read_png(picture.png)
    if pixels.shape[:2] != (picture.height, picture.width) or _hash(pixels) != picture.sha256:
        raise ValueError("a picture has other pixels than its hash names\nsend the picture that was read")
    return pixels


def _hash(pixels: Pixels) -> str:
    rows, columns, _ = pixels.shape
    return hashlib.sha256(struct.pack("<2I", columns, rows) + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def read_picture(path: Path) -> Picture:
    """The picture in a file. `BadData` with its name for a file that cannot be read, and as `decode_picture`."""
    data = read_regular(path, MOST_BYTES, fix="name the file of a picture")
    try:
        return decode_picture(data)
    except BadData as error:
        raise BadData(f"{path}: {error.what}", fix="name a PNG, JPEG or WebP file") from None


def decode_picture(data: bytes) -> Picture:
    """The picture in the bytes of a PNG, JPEG or WebP file. `BadData` for any other file, and beyond the limits.

    The file is decoded in a worker process with bounded time and memory. `MissingRequirement` without Pillow.
    """
    if len(data) > MOST_BYTES:
        raise _refused(f"it has {len(data):,} bytes: {MOST_BYTES:,} are the most")
    reply = _DECODER.ask({"data": b64encode(data).decode()})
    if reply is None:
        raise _refused("its decoder was killed: it needs more than 10 seconds of CPU time, or too much memory")
    if "error" in reply:
        raise _refused(str(reply["error"]))
    try:  # a picture may have taken over its decoder
        width, height, rgb = int(reply["width"]), int(reply["height"]), b64decode(reply["rgb"])
        if min(width, height) < 1 or width * height > MOST_PIXELS or len(rgb) != 3 * width * height:
            raise ValueError("another size")
    except (KeyError, TypeError, ValueError):
        raise _refused("its decoder failed") from None
    return picture_of_pixels(np.frombuffer(rgb, np.uint8).reshape(height, width, 3))


def _refused(why: str) -> BadData:
    fix = "remove it from the data, or convert it to a PNG file of RGB"
    return BadData(f"a picture cannot be used: {why}", fix=fix)


_DECODER = LineWorker(
    WORKER, purpose="pictures of data rows cannot be decoded", packages="'groupwise[pictures]'", deadline=DEADLINE
)
atexit.register(_DECODER.close)
