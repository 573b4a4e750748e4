"""Processes behind a socket: closing ends those that work too, with all that they started, and leaves none behind."""

import os
import subprocess
from concurrent.futures import CancelledError
from threading import Event

import pytest

from groupwise.sandbox.worker_pool import WorkerPool, WorkerProcess
from tests.processes import PATIENCE


def start_sleeping(worker: WorkerProcess) -> subprocess.Popen[bytes]:
    """A process that sleeps, with a child whose id it printed."""
    line = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    worker.process = process = subprocess.Popen(line, start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline().strip().isdigit()
    return process


def exit_code(process: subprocess.Popen[bytes]) -> int:
    """The exit code, once no process can write to the output any more."""
    with process.stdout or open(os.devnull, "rb") as output:
        output.read()
    return process.wait()


def sleep_and_report(worker: WorkerProcess, started: Event) -> int:
    process = start_sleeping(worker)
    started.set()
    return exit_code(process)


def test_close_ends_a_busy_worker_with_its_processes() -> None:
    pool = WorkerPool([WorkerProcess()], "test")
    started = Event()
    working, waiting = pool.submit(sleep_and_report, started), pool.submit(sleep_and_report, started)
    try:
        assert started.wait(PATIENCE)
        pool.close()
        assert working.result(PATIENCE) == -9
        with pytest.raises(CancelledError):  # a call that waits for a worker never gets one
            waiting.result(PATIENCE)
    finally:  # so that a failing test leaves no process
        pool.workers[0].kill()


def test_close_ends_an_idle_worker_and_closing_again_does_nothing() -> None:
    pool = WorkerPool([WorkerProcess()], "test")
    process = pool.submit(start_sleeping).result(PATIENCE)
    pool.close()
    assert process.returncode == -9 and pool.workers[0].process is None
    assert exit_code(process) == -9
    pool.close()
    assert pool.workers[0].end() == "not running"
