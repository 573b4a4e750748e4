"""Shared by tests of the sandbox: whether this machine has one, and the processes of the host."""

import os
import shutil
from pathlib import Path

import pytest

from groupwise.sandbox import ExecutionInput, Sandbox


def needed() -> None:
    """Skips the test if bubblewrap is missing; fails it under CI."""
    if shutil.which("bwrap") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs bubblewrap: apt-get install bubblewrap")


def value(sandbox: Sandbox, code: str, *args: object) -> object:
    """What the function `f` of a program returns."""
    (execution,) = sandbox.run([ExecutionInput(code, "f", args)])
    assert execution.end_reason == "done", execution
    return execution.return_value


def children(of: int) -> list[int]:
    """All descendants of a process."""
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
    """The ids of the running sandbox processes (bubblewrap)."""
    return sorted(worker.process.pid for worker in sandbox._pool.workers if worker.process is not None)
