"""Run several coroutines at once; if one fails, cancel the others."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await coroutines at once; their results in the given order. The first exception cancels the others and is raised.

    >>> async def twice(x): return 2 * x
    >>> asyncio.run(together([twice(1), twice(2)]))
    [2, 4]
    """
    tasks = [asyncio.ensure_future(c) for c in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
