"""Writes run.json."""

import json

from groupwise.runs.atomic_writes import DISK, FileSystemOperations, storage_errors, write_file
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout


def write_info(layout: RunLayout, info: RunInfo, *, disk: FileSystemOperations = DISK) -> None:
    """Write run.json, atomically. Raises `Storage`."""
    with storage_errors(layout.info.name, layout.run_directory):
        write_file(layout.info, json.dumps(info.to_json(), indent=2).encode() + b"\n", disk)
