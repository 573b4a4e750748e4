"""Runs work that may wait for other ranks in a thread: gloo's waits hold back the handlers of signals."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

from groupwise.cluster.processes import REPORT
from groupwise.learner import Ranks

T = TypeVar("T")

LOOK = 0.2
"""Seconds between looks for a signal: one that arrives just before the main thread waits would wait with it."""


async def in_thread(work: Callable[[], T], ranks: Ranks, notify: Callable[[str], None]) -> T:
    """Run `work` in a thread, so that signals reach the event loop while a rank does not answer.

    `notify` gets a line if the work waits for one rank for `REPORT` seconds, then for twice as many, and so on.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    report = REPORT
    while not (await asyncio.wait({task}, timeout=report / 2))[0]:
        wait = ranks.waiting
        if wait is None or wait.seconds < REPORT:
            report = REPORT
        elif wait.seconds >= report:
            notify(f"waiting for {wait.awaited_rank} for {wait.seconds:.0f} s: {wait.awaited_data}")
            report *= 2
    return task.result()


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
