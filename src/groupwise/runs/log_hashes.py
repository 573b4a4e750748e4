"""SHA-256 of a run's logs and samples, so that `resume` detects files that were changed meanwhile."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from groupwise.core import Storage


def log_difference(data: bytes, size: int, sha256: str | None) -> str:
    """How a log differs from its size and hash in a checkpoint; empty if the part up to that size is equal.

    >>> log_difference(b"{}", 3, None)
    '2 bytes; the checkpoint has 3'
    """
    if len(data) < size:
        return f"{len(data)} bytes; the checkpoint has {size}"
    digest, lines = hashlib.sha256(data[:size]).hexdigest(), data[:size].count(b"\n")
    if sha256 in (None, digest):  # None before the first checkpoint
        return ""
    return f"SHA-256 of lines 1 to {lines} is {abbreviated(digest)}; the checkpoint has {abbreviated(sha256)}"


def hash_line(name: str, data: bytes) -> bytes:
    """A file's hash as one line in the format of `sha256sum --check`."""
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode()


def check_hashes(home: Path, hash_lines: bytes, notify: Callable[[str], None]) -> None:
    """Compare files with their recorded hashes. A changed file raises `Storage`; `notify` gets missing ones."""
    lines = [line.partition("  ") for line in hash_lines.decode(errors="replace").splitlines()]
    missing: list[str] = []
    for sha256, _, name in lines:
        try:
            with (home / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            missing.append(name)
            continue
        if digest != sha256:
            raise Storage(
                f"{home / name} was changed after it was written",
                evidence=f"SHA-256 is {abbreviated(digest)}; it was {abbreviated(sha256)}",
                fix="restore the file from a backup, or delete it: the run continues without it",
            )
    if missing:
        names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        notify(f"warning: {len(missing)} of {len(lines)} files of samples/ are missing: {names}")


def abbreviated(sha256: object) -> str:
    """The first 12 digits of a hash, for messages."""
    return f"{str(sha256)[:12]}…"
