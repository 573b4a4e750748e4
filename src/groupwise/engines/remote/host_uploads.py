"""Sends a weights file to other hosts: once to each, whatever the number of its engines, and to several at a time."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from groupwise.data import SEND_SECONDS, SENT_BYTES
from groupwise.engines.remote.weights_file import WeightsFile

T = TypeVar("T")
AT_ONCE = 16
"""The most uploads at a time: each has a thread, and a window of parts in memory."""


class HostUploads:
    """The hosts with the newest weights file, and the bytes and seconds of sending them.

    The engines report the names of their hosts. One that reports another's name can only make the trainer send a file
    twice: an engine that does not find the file on its host gets it, too.
    """

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._bytes, self._seconds = 0, 0.0

    async def once(self, file: WeightsFile, host: str, send: Callable[[], Awaitable[None]]) -> None:
        """Send a file to a host, unless it has been sent there. Others wait; if it fails, the next one sends."""
        async with self._turns[host]:
            if self._newest.get(host) != file.sha256:
                await self.again(file, host, send)

    async def again(self, file: WeightsFile, host: str, send: Callable[[], Awaitable[None]]) -> None:
        """Send a file to a host, in any case."""
        async with self._places:
            await self.counted(file.path.stat().st_size, send())
        self._newest[host] = file.sha256

    async def counted(self, size: int, sending: Awaitable[T]) -> T:
        """Wait until `size` bytes of weights are sent, and count them and the seconds."""
        start = monotonic()
        result = await sending
        self._bytes, self._seconds = self._bytes + size, self._seconds + monotonic() - start
        return result

    def figures(self) -> dict[str, float]:
        """The bytes sent since the last call, and the seconds of these uploads, added up; empty if there was none."""
        sent, seconds = self._bytes, self._seconds
        self._bytes, self._seconds = 0, 0.0
        return {SENT_BYTES: float(sent), SEND_SECONDS: seconds} if sent else {}
