"""Files that a recipe names are read only if they are regular, and within a bound. Nothing else is even opened."""

import os
import socket
from pathlib import Path

import pytest

from groupwise.core import BadData, open_regular, read_regular


@pytest.fixture
def others(tmp_path: Path) -> dict[str, Path]:
    """Paths that are no regular files. To open the pipe would block for ever."""
    pipe, listener = tmp_path / "pipe", socket.socket(socket.AF_UNIX)
    os.mkfifo(pipe)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    names = {"pipe": pipe, "socket": tmp_path / "socket", "link": tmp_path / "link", "loop": tmp_path / "loop"}
    return {**names, "folder": tmp_path, "device": Path("/dev/zero"), "none": tmp_path / "none"}


@pytest.mark.parametrize("name", ["pipe", "socket", "link", "loop", "folder", "device", "none"])
def test_other_files_are_refused(others: dict[str, Path], name: str) -> None:
    path = others[name]
    with pytest.raises(OSError, match=r"."):
        open_regular(path)
    with pytest.raises(BadData) as caught:
        read_regular(path, 10, fix="take another one")
    assert caught.value.what == f"{path} cannot be read" and caught.value.fix == "take another one"
    reasons = {"none": "No such file or directory", "loop": "Too many levels of symbolic links"}
    assert caught.value.evidence == reasons.get(name, "not a regular file")


def test_the_bound_is_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert read_regular(file, 10) == b"x" * 10
    with pytest.raises(BadData) as caught:
        read_regular(file, 9)
    assert caught.value.evidence == "it has more than 9 bytes"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    with pytest.raises(BadData):
        read_regular(file, 1 << 30)


def test_a_name_with_a_null_byte_is_no_file() -> None:
    with pytest.raises(BadData):
        read_regular("a\0b", 9)
