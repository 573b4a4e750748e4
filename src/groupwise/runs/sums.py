"""Hashes of what a run has written, so that a change behind its back is found before it goes on."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from groupwise.data import Storage


def changed_since(data: bytes, size: int, sha256: str | None) -> str:
    """How the first `size` bytes of a log differ from those that a checkpoint remembers; empty if they do not.

    >>> changed_since(b"{}", 3, None)
    '2 bytes; the checkpoint remembers 3'
    """
    if len(data) < size:
        return f"{len(data)} bytes; the checkpoint remembers {size}"
    found, lines = hashlib.sha256(data[:size]).hexdigest(), data[:size].count(b"\n")
    if sha256 in (None, found):  # a checkpoint of an earlier version has no hash
        return ""
    return f"SHA-256 of lines 1 to {lines} is {short(found)}; the checkpoint remembers {short(sha256)}"


def sum_line(name: str, data: bytes) -> bytes:
    """A file's hash in a line, as `sha256sum --check` reads it."""
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode()


def check_files(home: Path, sums: bytes, warn: Callable[[str], None]) -> None:
    """Compare files with the lines that `sum_line` wrote. `Storage` names a changed one; missing ones go to `warn`."""
    lines = [line.partition("  ") for line in sums.decode(errors="replace").splitlines()]
    missing: list[str] = []
    for sha256, _, name in lines:
        try:
            with (home / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            missing.append(name)
            continue
        if found != sha256:
            raise Storage(
                f"{home / name} was changed after it was written",
                evidence=f"SHA-256 {short(found)}, then {short(sha256)}",
                fix="bring the file back from a copy, or remove it: the run goes on without it",
            )
    if missing:
        names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        warn(f"warning: {len(missing)} of {len(lines)} files of samples/ are missing: {names}")


def short(sha256: object) -> str:
    """The first digits of a hash."""
    return f"{str(sha256)[:12]}…"
