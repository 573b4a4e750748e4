"""Tests under Ray stop and kill processes of their own runs, and no process of another suite."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.ray_processes import MARK, OWN, processes

PROGRAM = "code"
"""A program of Python that waits for its input."""


@contextmanager
def started(mark: str) -> Iterator[int]:
    """The process id of a program with a mark in its environment, which runs."""
    command = [sys.executable, "-P", "-m", PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env={**os.environ, MARK: mark}, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout is not None and child.stdout.read(6) == b"Python"
        yield child.pid
        child.kill()


def test_the_programs_of_another_suite_are_not_found() -> None:
    with started(OWN) as own, started("other") as other:
        assert processes([PROGRAM]) == {own: os.getpid()}
        assert processes([PROGRAM], mark="other") == {other: os.getpid()}
    assert own not in processes([PROGRAM])
