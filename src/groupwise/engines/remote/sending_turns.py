"""Decides who sends a weights file to the next host, of the trainer and the hosts that have it already."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import ceil
from typing import TypeVar

from groupwise.engines.remote.wire import MOST_RECEIVERS

__all__ = ["most_receivers"]

S = TypeVar("S")


def most_receivers(senders: int, under_way: int, waiting: int) -> int:
    """To how many hosts each sender may send at a time, when `under_way` hosts receive, and `waiting` ones do not yet.

    A sender alone may send to as many as ever. Several leave hosts for those that receive now, which will send, too: a
    sender with fewer receivers ends sooner.

    >>> most_receivers(1, 0, 15), most_receivers(5, 0, 11), most_receivers(5, 5, 6)
    (4, 3, 1)
    """
    return MOST_RECEIVERS if senders == 1 else min(MOST_RECEIVERS, ceil(waiting / (senders + under_way)))


class SendingTurns:
    """The hosts that send and those that wait. Each sender is known by the name of its host."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()
        """The number of hosts to which each sender sends now."""
        self._lacking = 0
        """The number of hosts that still wait for a sender."""
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def turn(self, senders: Callable[[], Mapping[str, S]]) -> AsyncIterator[S]:
        """Wait for the sender with the fewest receivers, if it may have one more: it has, during this context.

        `senders`, by their hosts, is called again after each `wake`, and when any sender is done.
        """
        self._lacking += 1
        try:
            while not (free := self._free(found := senders())):
                turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(turn)
                await turn
        finally:
            self._lacking -= 1
        self._under_way[free[0]] += 1
        try:
            yield found[free[0]]
        finally:
            self._under_way[free[0]] -= 1
            self.wake()

    def wake(self) -> None:
        """Let the hosts that wait look for a sender again, in their order."""
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def _free(self, senders: Mapping[str, S]) -> list[str]:
        """The hosts of the senders that may have one more receiver; the fewest receivers first."""
        most = most_receivers(len(senders), self._under_way.total(), self._lacking)
        return sorted((host for host in senders if self._under_way[host] < most), key=self._under_way.__getitem__)
