"""Read the header of a GGUF file: its metadata and its table of tensors.

Each count is compared with the file's size before anything is allocated: a file of a few bytes may state 2**63 tensors.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groupwise.core import BadData, open_regular
from groupwise.models.json_fields import short

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_HEADER = 64 << 20
"""Largest header that is parsed, in bytes. A vocabulary of 256,000 tokens with its merges has some 12 MB."""
MOST_DIMENSIONS = 4
ALIGNMENT = 32
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The numeric types of metadata, as codes of `struct` and of numpy."""
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A stored tensor: its type as GGML's number, its shape in PyTorch's order, and its first byte in the file."""

    ggml_type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class GgufHeader:
    """Metadata and tensors of a GGUF file, by name. Arrays of numbers are numpy arrays, arrays of strings are lists."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of a GGUF file, version 2 or 3, little-endian. BadData for any other file.

    Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    try:
        with open_regular(path) as file:
            content = file.read(min(path.stat().st_size, MOST_HEADER))  # read(n) allocates n bytes
    except OSError as error:
        raise BadData(f"{path} cannot be read", evidence=str(error.strerror), fix="fetch the file again") from error
    try:
        return _header(_Cursor(content))
    except EOFError as error:
        if len(content) == MOST_HEADER:
            what, fix = f"{path} has a header of more than {MOST_HEADER} bytes", "take the model's safetensors files"
            raise BadData(what, evidence=str(error), fix=fix) from error
        raise BadData(f"{path} is truncated", evidence=str(error), fix="fetch the file again") from error
    except ValueError as error:  # also UnicodeDecodeError
        raise BadData(f"{path} is not a GGUF file", evidence=str(error), fix="fetch the file again") from error


class _Cursor:
    """Reads values from bytes, one after another. EOFError if a value extends beyond the end."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def take(self, size: int) -> int:
        """Consume the next `size` bytes, and return their position."""
        start = self.at
        if size > len(self.content) - start:
            raise EOFError(f"a value at byte {start} has {size} bytes, and only {len(self.content) - start} follow")
        self.at += size
        return start

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(f"<{code}", self.content, self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str:
        size = self.scalar("Q")
        start = self.take(size)
        return self.content[start : start + size].decode()

    def array(self, code: str, count: int) -> np.ndarray:
        dtype = np.dtype(code).newbyteorder("<")
        return np.frombuffer(self.content, dtype, count, self.take(count * dtype.itemsize))

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.scalar(_code(kind))
        element, count = self.scalar("I"), self.scalar("Q")
        if element == STRING:
            return [self.text() for _ in range(count)]
        return self.array(_code(element), count)


def _code(kind: int) -> str:
    if kind not in SCALARS:
        raise ValueError(f"a metadata value of the GGUF file has the unknown type {kind}")
    return SCALARS[kind]


def _header(cursor: _Cursor) -> GgufHeader:
    """Parse a header. ValueError for invalid contents."""
    if (magic := cursor.content[: cursor.take(4) + 4]) != MAGIC:
        raise ValueError(f"it starts with {magic!r}, expected {MAGIC!r}")
    if (version := cursor.scalar("I")) not in VERSIONS:
        raise ValueError(f"version {version}, expected one of {VERSIONS}")
    tensor_count, metadata_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        _add(metadata, cursor.text(), cursor.value(cursor.scalar("I")))
    tensors: dict[str, GgufTensor] = {}
    for _ in range(tensor_count):
        name, dimensions = cursor.text(), cursor.scalar("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"the tensor {short(name)} has {dimensions} dimensions")
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))
        _add(tensors, name, GgufTensor(cursor.scalar("I"), shape[::-1], cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {short(alignment)}, not a whole number of at least 1")
    start = -(-cursor.at // alignment) * alignment
    placed = {name: GgufTensor(t.ggml_type, t.shape, start + t.offset) for name, t in tensors.items()}
    return GgufHeader(metadata, placed)


def _add(table: dict[str, Any], name: str, value: Any) -> None:
    if name in table:
        raise ValueError(f"the name {short(name)} occurs twice")
    table[name] = value
