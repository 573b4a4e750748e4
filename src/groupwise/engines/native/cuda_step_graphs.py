"""CUDA graphs of decoding steps: one launch in place of a thousand. Elsewhere a step runs operation by operation."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]


class CudaStepGraphs:
    """Runs a step by its name: the first call runs it and captures it, later ones replay the capture.

    A captured step reads and writes the same memory at each replay, and issues the same operations. So a step has
    static buffers for its inputs, and another name where its shapes or operations differ. `capture` is False where
    there are no CUDA graphs: each call runs the step.
    """

    def __init__(self, *, capture: bool) -> None:
        self.capture = capture
        self._captured: dict[Hashable, tuple[Any, Outputs]] = {}
        self._pool: Any = None

    def run(self, name: Hashable, step: Callable[[], Outputs]) -> Outputs:
        """The outputs of a step. They are overwritten by the next one."""
        if not self.capture:
            return step()
        if name not in self._captured:
            out = step()  # the first run of a kernel may allocate, which a capture forbids
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool):
                static = step()
            self._captured[name] = graph, static
            return out  # capturing executes nothing
        graph, static = self._captured[name]
        graph.replay()
        return static

    def drop(self) -> None:
        """Forget all captures: the buffers that they read have moved, or their memory is needed."""
        self._captured.clear()
        self._pool = None
