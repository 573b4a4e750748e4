"""Processes behind a socket: closing ends those that work too, with all that they started, and leaves none behind."""

import os
import subprocess
from concurrent.futures import CancelledError
from threading import Event

import pytest

from groupwise.sandbox.processes import WorkerPool, WorkerProcess

PATIENCE = 30
"""Seconds after which a test that hangs gives up: never waited for where all is well."""


def begun(child: WorkerProcess) -> subprocess.Popen[bytes]:
    """A process that would sleep for ever, beside one that it started and named."""
    line = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    child.process = process = subprocess.Popen(line, start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline().strip().isdigit()
    return process


def ended(process: subprocess.Popen[bytes]) -> int:
    """How it ended, once the last process that could write to its output is gone."""
    with process.stdout or open(os.devnull, "rb") as rest:
        rest.read()
    return process.wait()


def works(child: WorkerProcess, started: Event) -> int:
    process = begun(child)
    started.set()
    return ended(process)


def test_close_ends_a_busy_child_with_all_that_it_started() -> None:
    crew = WorkerPool([WorkerProcess()], "test")
    started = Event()
    working, waiting = crew.submit(works, started), crew.submit(works, started)
    try:
        assert started.wait(PATIENCE)
        crew.close()
        assert working.result(PATIENCE) == -9
        with pytest.raises(CancelledError):  # what had no child yet never gets one
            waiting.result(PATIENCE)
    finally:  # where closing does not, so that a failing test leaves nothing behind
        crew.children[0].kill()


def test_close_ends_an_idle_child_and_closing_again_is_nothing() -> None:
    crew = WorkerPool([WorkerProcess()], "test")
    process = crew.submit(begun).result(PATIENCE)
    crew.close()
    assert process.returncode == -9 and crew.children[0].process is None
    assert ended(process) == -9
    crew.close()
    assert crew.children[0].end() == "not running"
