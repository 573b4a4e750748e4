"""Calls in threads that neither an event loop nor the end of the process waits for."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from groupwise.core.ending_exceptions import as_error

__all__ = ["in_daemon_loop", "in_daemon_thread"]


async def in_daemon_thread(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a new thread. No number of calls that hang keeps another call, or the program, waiting.

    A thread cannot be killed: if the caller is cancelled, the call goes on, and its result is dropped.

    >>> asyncio.run(in_daemon_thread(pow, 2, 5))
    32
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def end(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def call() -> None:
        try:
            outcome = function(*args), None
        except Exception as error:
            outcome = None, error
        except BaseException as error:  # such as `sys.exit()`, which ends this call only
            outcome = None, as_error(error)
        with suppress(RuntimeError):  # the loop has ended before the call
            loop.call_soon_threadsafe(end, *outcome)

    threading.Thread(target=call, daemon=True).start()
    result, error = await ended
    if error is not None:
        raise error
    return result


async def in_daemon_loop(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The result of a coroutine in a new event loop and thread. If the caller is cancelled, so is it.

    >>> asyncio.run(in_daemon_loop(lambda: asyncio.sleep(0.0, 32)))
    32
    """
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    cancelled = threading.Event()

    async def work() -> Any:
        task = asyncio.current_task()
        assert task is not None, "asyncio.run makes a task"
        running.append((asyncio.get_running_loop(), task))
        if cancelled.is_set():  # before the thread had begun
            raise asyncio.CancelledError
        return await begin()

    try:
        return await in_daemon_thread(lambda: asyncio.run(work()))
    except asyncio.CancelledError:
        cancelled.set()
        for loop, task in running:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
        raise
