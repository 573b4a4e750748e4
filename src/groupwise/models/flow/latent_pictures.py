"""Final states as pictures, and PNG files of them. Imports no torch, so that a report can read them."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from groupwise.models.flow.denoising_actions import Pixels, all_states, decode_action, decoded_picture, final_state

__all__ = ["PictureSheet", "picture_of", "png", "points_of", "reduced"]

SMALL, GAP = 32, 4
"""Pictures of fewer rows than `SMALL` are enlarged by whole factors; `GAP` pixels lie between pictures on a sheet."""
PLANE, REACH = 48, 3.5
"""The side of the picture of a point in the plane, in pixels, and the largest coordinate that it shows."""
GREY, BACKGROUND = 96, 24


def picture_of(path: Sequence[bytes]) -> Pixels | None:
    """The final state as pixels [rows, columns, 3]; a point in the plane with its trajectory. None for other states.

    Latents have their decoded picture. Another state has the shape [3, rows, columns] or [1, rows, columns], with
    numbers from -1 to 1, or [2]. A number that is not finite is dark.
    """
    if (decoded := decoded_picture(path)) is not None:
        return decoded
    state = final_state(path)
    if state is None:
        return None
    if state.shape == (2,):
        return trajectory(path)
    if state.ndim != 3 or state.shape[0] not in (1, 3):
        return None
    levels = (np.nan_to_num(state, nan=-1.0, posinf=1.0, neginf=-1.0).clip(-1, 1) + 1) * 127.5
    pixels = levels.round().astype(np.uint8).transpose(1, 2, 0)
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3)).copy()


def points_of(path: Sequence[bytes]) -> list[list[float]] | None:
    """The states of a point in the plane, from the noise to the final one, to three decimals. None for other paths.

    >>> from groupwise.models.flow.denoising_actions import encode_action
    >>> before, after = np.array([0.5, 1], "f4"), np.array([2, 1 / 3], "f4")
    >>> points_of([encode_action(before, after, after)])
    [[0.5, 1.0], [2.0, 0.333]]
    """
    state = final_state(path)
    if state is None or state.shape != (2,) or any(len(decode_action(action)) != 3 for action in path):
        return None
    states = all_states(path)
    return states.astype(float).round(3).tolist() if states is not None and np.isfinite(states).all() else None


def trajectory(path: Sequence[bytes]) -> Pixels:
    """The plane with axes, the states of a point as a line that becomes lighter, and its last state."""
    pixels = np.full((PLANE, PLANE, 3), BACKGROUND, np.uint8)
    pixels[PLANE // 2], pixels[:, PLANE // 2] = GREY // 2, GREY // 2
    actions = [decode_action(action) for action in path]
    spans = [(a[0], a[1]) for a in actions if len(a) == 3]
    for i, (before, after) in enumerate(spans):
        level = GREY + (255 - GREY) * (i + 1) // len(spans)
        for share in np.linspace(0, 1, 24):
            paint(pixels, (1 - share) * before + share * after, level)
    paint(pixels, actions[-1][1], 255, reach=1)
    return pixels


def paint(pixels: Pixels, point: NDArray[np.floating], level: int, reach: int = 0) -> None:
    """Paint the pixel of a point of the plane, and those up to `reach` pixels away."""
    if not np.isfinite(point).all() or np.abs(point).max() >= REACH:
        return
    x, y = (int(n) for n in (point * (1, -1) / REACH + 1) / 2 * PLANE)
    pixels[max(y - reach, 0) : y + reach + 1, max(x - reach, 0) : x + reach + 1] = level


@dataclass(frozen=True, slots=True, eq=False)
class PictureSheet:
    """Pictures side by side on one page of pixels: a row per group.

    `picture_boxes` are left, top and size of each picture.

    Pictures are enlarged by `enlargement_factor`. A picture that is None has no box.
    """

    pixels: Pixels
    picture_boxes: tuple[tuple[int, int, int, int] | None, ...]
    enlargement_factor: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[Pixels | None]]) -> "PictureSheet | None":
        """The sheet of these groups; None without pictures."""
        pictures = [picture for group in groups for picture in group if picture is not None]
        if not pictures:
            return None
        rows, columns = (max(p.shape[axis] for p in pictures) for axis in (0, 1))
        scale = max(1, ceil(SMALL / rows))
        height, width = rows * scale + GAP, columns * scale + GAP
        pixels = np.full((GAP + height * len(groups), GAP + width * max(map(len, groups)), 3), BACKGROUND, np.uint8)
        boxes: list[tuple[int, int, int, int] | None] = []
        for r, group in enumerate(groups):
            for c, picture in enumerate(group):
                boxes.append(None)
                if picture is not None:
                    large = picture.repeat(scale, 0).repeat(scale, 1)
                    top, left = GAP + r * height, GAP + c * width
                    pixels[top : top + len(large), left : left + large.shape[1]] = large
                    boxes[-1] = (left, top, large.shape[1], large.shape[0])
        return cls(pixels, tuple(boxes), scale)


def reduced(pixels: Pixels, side: int) -> Pixels:
    """A picture whose longer side has at most `side` pixels, by means of square blocks.

    >>> reduced(np.array([[[0] * 3, [9] * 3], [[9] * 3, [18] * 3]], np.uint8), 1).tolist()
    [[[9, 9, 9]]]
    """
    block = ceil(max(pixels.shape[:2]) / side)
    if block == 1:
        return pixels
    rows, columns = (max(n // block, 1) for n in pixels.shape[:2])
    whole = np.pad(pixels, [(0, max(0, block - n)) for n in pixels.shape[:2]] + [(0, 0)], mode="edge")
    blocks = whole[: rows * block, : columns * block].reshape(rows, block, columns, block, 3)
    return blocks.mean((1, 3)).round().astype(np.uint8)


def png(pixels: Pixels) -> bytes:
    """An 8-bit RGB PNG file of pixels [rows, columns, 3], which `read_png` reads back.

    >>> read_png(png(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)))[1, 1].tolist()
    [9, 10, 11]
    """
    rows, columns, _ = pixels.shape
    lines = np.zeros((rows, 1 + 3 * columns), np.uint8)  # a 0 before each row: its bytes are unfiltered
    lines[:, 1:] = pixels.reshape(rows, -1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(map(chunk, *zip(*chunks)))


SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_PIXELS = 1 << 26


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def read_png(data: bytes) -> Pixels:
    """The pixels of a file that `png` wrote. ValueError for any other file, also a valid PNG of another kind."""
    try:
        columns, rows, *kind = struct.unpack_from(">IIBBBBB", data, len(SIGNATURE) + 8)
        if not data.startswith(SIGNATURE) or kind != [8, 2, 0, 0, 0] or rows * columns > MOST_PIXELS:
            raise ValueError("another kind")
        (length,) = struct.unpack_from(">I", data, 33)
        size = rows * (1 + 3 * columns)
        lines = np.frombuffer(zlib.decompressobj().decompress(data[41 : 41 + length], size), np.uint8)
        return lines.reshape(rows, 1 + 3 * columns)[:, 1:].reshape(rows, columns, 3)
    except (struct.error, zlib.error, ValueError) as error:
        raise ValueError("this is not a PNG file that groupwise wrote\nrun the command that wrote it again") from error
