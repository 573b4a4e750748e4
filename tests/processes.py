"""The processes that tests look at, and the longest waits for them.

No verdict of a test depends on a short deadline that an honest process must meet: on a busy machine it does not. A
short deadline is for something that never answers, and only from the moment on at which nothing else has to.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from groupwise.engines import RemoteEngine

PATIENCE = 100.0
"""Seconds until a test gives up: a passing test never waits so long."""
HASTE = 1.0
"""Seconds for something that never answers."""


def state_of(task: Path) -> str:
    """The state of a process or thread in /proc, such as S for sleeping; empty if it has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second one: it ends between the two calls
        return ""


def is_running(pid: int) -> bool:
    """Whether a process runs or is stopped; not if it is a zombie that its new parent has yet to collect."""
    return state_of(Path(f"/proc/{pid}")) not in ("", "Z")


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds. AssertionError with `what` after `PATIENCE` seconds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until none of these processes runs."""
    pids = list(pids)
    wait_until(lambda: not any(map(is_running, pids)), f"still running: {list(filter(is_running, pids))}")


def hasten(engine: RemoteEngine, seconds: float = HASTE) -> None:
    """Give an engine this deadline from now on: it is stopped, and answers nothing any more. From any thread."""
    *others, watch = engine._tasks

    def begin_again() -> None:
        engine._heartbeat.deadline = seconds
        watch.cancel()
        engine._tasks[:] = [*others, asyncio.create_task(engine._watch())]

    watch.get_loop().call_soon_threadsafe(begin_again)
