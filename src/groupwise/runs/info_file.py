"""Writes run.json, and with recipe.toml the first files of a run."""

import json
from pathlib import Path

from groupwise.runs.disk import DISK, Disk, storage_errors, write_file
from groupwise.runs.info import RunInfo
from groupwise.runs.layout import RunLayout


def write_info(run: Path, info: RunInfo, *, disk: Disk = DISK) -> None:
    """Write run.json, atomically. Raises `Storage`."""
    path = RunLayout(run).info
    with storage_errors(path.name, run):
        write_file(path, json.dumps(info.to_json(), indent=2).encode() + b"\n", disk)


def start_run(run: Path, info: RunInfo, recipe: str, *, disk: Disk = DISK) -> None:
    """Write run.json, then recipe.toml, which makes the directory a run. Both are synced to disk on return."""
    write_info(run, info, disk=disk)
    with storage_errors("the recipe", run):
        write_file(RunLayout(run).recipe, recipe.encode(), disk)
