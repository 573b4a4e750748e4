"""Runs blocking work from a program that may have an event loop, such as a notebook."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")
POLL = 0.1
"""Seconds between two checks for a keyboard interrupt while work runs in another thread."""


def run_blocking(
    work: Callable[[], T],
    interrupt: Callable[[str], object] = lambda cause: None,
    wait: Callable[[], None] = lambda: None,
) -> T:
    """Run `work`, which may call `asyncio.run`, and return its result: in another thread if this one has an event loop.

    The first KeyboardInterrupt then calls `interrupt`; a second one is raised. `wait` is called every `POLL` seconds.
    """
    if not has_loop():
        return work()
    interrupted = False
    with ThreadPoolExecutor(1, thread_name_prefix="groupwise") as pool:
        future = pool.submit(copy_context().run, work)
        while True:
            try:
                return future.result(POLL)
            except NotDone:
                if future.done():  # the work itself raised a TimeoutError
                    raise
                wait()
            except KeyboardInterrupt:
                if interrupted or future.done():
                    raise
                interrupted = True
                interrupt("interrupted")


def has_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
