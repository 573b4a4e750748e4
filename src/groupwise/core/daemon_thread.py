"""Calls in threads that neither an event loop nor the end of the process waits for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from groupwise.core.ending_exceptions import as_error

__all__ = ["in_daemon_thread"]


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
