"""The one reader of files that a recipe, a model directory or another process names: regular files, within a bound."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from groupwise.core.errors import BadData

__all__ = ["open_regular", "read_regular"]


def open_regular(path: str | Path, most: int | None = None) -> BufferedReader:
    """Open a regular file of at most `most` bytes. OSError for anything else.

    A device or a pipe is not opened: that alone may block, or act.
    """
    _check(os.stat(path), path, most)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    try:
        _check(os.fstat(file.fileno()), path, most)  # it may be another file by now
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | Path, most: int, fix: str = "fetch the file again") -> bytes:
    """The content of a regular file. `BadData` with the `fix` if it is missing, no regular file, or larger."""
    try:
        with open_regular(path, most) as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise _too_large(path, most)
        return content
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        evidence = getattr(error, "strerror", None) or str(error)
        raise BadData(f"{path} cannot be read", evidence=evidence, fix=fix) from error


def _check(status: os.stat_result, path: str | Path, most: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if most is not None and status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: str | Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
