"""What tests of the sandbox share: whether there is one here, and what the host looks like."""

import os
import shutil
from pathlib import Path

import pytest

from groupwise.sandbox import Sandbox


def needed() -> None:
    """Skips visibly where bubblewrap is missing; under CI that is a failure."""
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs bubblewrap: apt-get install bubblewrap")


def children(of: int) -> list[int]:
    """Every process under one, however deep."""
    found, parents = [], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if stat[0] != "Z":
                parents[int(entry.name)] = int(stat[1])
    level = [of]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return sorted(found)


def servers(sandbox: Sandbox) -> list[int]:
    """The first process of each box that runs."""
    return sorted(box.process.pid for box in sandbox._crew.children if box.process is not None)
