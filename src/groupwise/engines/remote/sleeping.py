"""A native engine in another process than the learner, which frees its memory between two loads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.engines import NativeEngine
from groupwise.models.return_freed_memory import return_freed_memory

__all__ = ["SleepingEngine"]


class SleepingEngine(NativeEngine):
    """A `NativeEngine` that sleeps between two loads. It shares no tensor with the learner."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._freed: list[tuple[torch.UntypedStorage, int]] = []

    async def sleep(self) -> None:
        """Free the weights and all caches. Running requests are cut."""
        await self.load(-1, self._decoder.state_dict())  # empties the caches
        for x in self._decoder.state_dict().values():
            storage = x.untyped_storage()
            if size := storage.nbytes():  # tied weights are freed once
                self._freed.append((storage, size))
                storage.resize_(0)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return_freed_memory(always=True)  # for the learner, which is another process or another phase

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights. A sleeping engine allocates their memory first."""
        while self._freed:
            storage, size = self._freed.pop()
            storage.resize_(size)
        await super().load(version, weights)
