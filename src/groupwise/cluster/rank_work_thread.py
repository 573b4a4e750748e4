"""Work that may wait for other ranks runs in a thread, as gloo's waits hold back signals. Long waits are reported."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Thread
from typing import TypeVar

from groupwise.cluster.processes import REPORT
from groupwise.learner import Ranks
from groupwise.learner.rank_pulse import RankWait

T = TypeVar("T")

LOOK = 0.2
"""Seconds between looks for a signal: one that arrives just before the main thread waits would wait with it."""


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread, so that signals reach the event loop while a rank does not answer."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    while not (await asyncio.wait({task}, timeout=LOOK))[0]:
        pass
    return task.result()


def wait_line(wait: RankWait) -> str:
    """The line about a long wait.

    >>> import time
    >>> wait_line(RankWait((3,), "a message", start_seconds=time.monotonic() - 20, silent=True))
    'waiting for rank 3 for 20 s, without a sign of life: a message'
    """
    life = ", without a sign of life" if wait.silent else ""
    return f"waiting for {wait.names} for {wait.seconds:.0f} s{life}: {wait.awaited_data}"


@contextmanager
def waits_reported(ranks: Ranks, notify: Callable[[str], None]) -> Iterator[None]:
    """Within it, `notify` gets a line about each wait for another rank of `REPORT` seconds, then of twice as many, ...

    A thread looks at `ranks.waiting`, so it does not matter which thread waits, and for which work.
    """
    over = Event()

    def look() -> None:
        report = REPORT
        while not over.wait(REPORT / 2):
            wait = ranks.waiting
            if wait is None or wait.seconds < REPORT:
                report = REPORT
            elif wait.seconds >= report:
                notify(wait_line(wait))
                report *= 2

    thread = Thread(target=copy_context().run, args=(look,), daemon=True)  # the context has the output of the call
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def interruptible(work: Callable[[], T]) -> T:
    """Run `work` in a thread, and wait for it: a signal that raises ends this wait. The thread ends with its work."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    while not wait({future}, timeout=LOOK).done:
        pass
    return future.result()
