"""Locks by which processes share the runs of studies."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file; with `wait=False`, False if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
