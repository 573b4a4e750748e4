"""Counts the memory of tensors on the CPU: what exists, and the most that existed at once."""

from typing import Any
from unittest.mock import patch

import torch
from benchmarks.rehearsal.fake_device import DeviceMemory, tensors_in
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):
    """A context in which the storages of results are counted. Files that are mapped are not: views show them."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = DeviceMemory()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it runs its operations on its local tensors, which come here
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            for x in tensors_in((result,)):
                if x.device.type == "cpu":
                    self.memory.hold(x.untyped_storage())
        return result

    def __enter__(self) -> "Allocations":
        resize, memory = torch.UntypedStorage.resize_, self.memory

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            memory.resized(storage)
            return result

        self._patch = patch.object(torch.UntypedStorage, "resize_", resized)
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._patch.stop()
