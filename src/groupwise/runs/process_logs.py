"""The output of a run's other processes: one file for each rank and each engine that the run starts."""

import os
from pathlib import Path
from typing import IO

from groupwise.runs.atomic_writes import storage_errors

LARGEST = 1 << 20
"""Bytes of a log that are kept when a process of its name starts again."""


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append to it and to read it. `Storage` if that is not possible.

    It keeps the output of the processes before, but not more than the last `LARGEST` bytes.
    """
    with storage_errors("the output of a process", path.parent):
        path.parent.mkdir(exist_ok=True)
        log = path.open("a+b")
        if log.tell() > LARGEST:
            log.seek(-LARGEST, os.SEEK_END)
            kept = log.read()
            log.truncate(0)
            log.write(kept)
            log.flush()
        return log
