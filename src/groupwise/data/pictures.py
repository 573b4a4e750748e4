"""Pictures in prompts: their pixels, the hash that names them, and the place of their prompts in packed tokens."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["ContentSpan", "Picture"]

MOST_PICTURES = 64
"""The most pictures of a prompt."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a prompt: its RGB pixels as a PNG file that this package wrote (`picture_of_pixels`).

    `sha256` is over width, height and pixels, so equal pixels are one picture, whatever files they came from.
    """

    width: int
    height: int
    sha256: str
    png: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ContentSpan:
    """A context with content besides tokens, such as pictures, in packed tokens: `context[i]` is at `start + i`.

    `continuation` are the indices of all packed tokens that follow the context.
    """

    content_hash: str
    context: tuple[int, ...]
    start: int
    continuation: tuple[int, ...] = ()


def hash_of_pictures(pictures: Sequence[Picture]) -> str:
    """The content hash of a prompt with these pictures, in their order; empty without any.

    >>> a, b = Picture(1, 1, "aa", b""), Picture(1, 1, "bb", b"")
    >>> hash_of_pictures(()), hash_of_pictures((a, b)) == hash_of_pictures((b, a))
    ('', False)
    """
    text = " ".join(picture.sha256 for picture in pictures)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
