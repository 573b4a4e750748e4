"""A fleet on the learner's device: it frees its memory before each step, and gets it back with the new weights."""

import asyncio
from typing import Any

import torch

from groupwise.core import EngineLost
from groupwise.engines.remote.fleet import Fleet, Slot

__all__ = ["SharedDeviceFleet"]


class SharedDeviceFleet(Fleet):
    """A `Fleet` that sleeps while the learner trains: then no replica has weights or a cache.

    The next `load` wakes all replicas; each gets the current weights and passes the probe before it gets requests. A
    replica that is lost meanwhile is replaced then, and not before.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._awake = asyncio.Event()

    async def sleep(self) -> None:
        """Free the memory of all replicas, and wait until it is free. A lost replica counts when its process ends."""
        async with self._changed:
            await self._changed.wait_for(self._settled)  # one that starts would otherwise load beside the learner
        self._awake.clear()
        await asyncio.gather(*map(self._put_to_sleep, self._slots))
        if self._published:
            self._published.weights_file.remove()  # no replica starts before the next load

    async def _put_to_sleep(self, slot: Slot) -> None:
        slot.suspend()
        replica = slot.replica
        if replica is None:
            return
        try:
            await replica.sleep()
        except Exception as error:
            replica.fail(f"it could not free its memory: {error}")
            async with self._changed:
                await self._changed.wait_for(lambda: slot.replica is not replica)

    def _open(self) -> None:
        """Wake the replicas, once the learner has freed the memory that its step needed."""
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # blocks that torch keeps are of no use to another process
        self._awake.set()
        super()._open()

    async def _fill(self, slot: Slot) -> None:
        await self._awake.wait()
        await super()._fill(slot)

    async def _turn(self) -> Slot:
        if self.version >= 0 and not self._awake.is_set():
            raise EngineLost("the engines sleep while the learner trains", fix="load the new weights first")
        return await super()._turn()
