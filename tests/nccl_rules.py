"""The rules of NCCL for exchanges of tensors on the pretended GPU, over gloo.

A batch has tensors of one device alone, and contiguous ones; a send or a receive of a GPU's tensor outside a batch may
wait for ever, and is refused here. Times, streams and NCCL's own errors are not pretended.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch.distributed as dist

from tests.pretended_gpu import OnGpu, hosted

ALONE = ("send", "recv", "all_gather", "all_gather_into_tensor", "all_to_all_single", "all_reduce", "broadcast")


@contextmanager
def nccl_rules() -> Iterator[Counter[str]]:
    """Enforce the rules in a block. Counts its batches by device."""
    batches: Counter[str] = Counter()
    exchange = dist.batch_isend_irecv

    def batched(operations: list[dist.P2POp]) -> Any:
        (on_gpu,) = {isinstance(operation.tensor, OnGpu) for operation in operations}
        batches["cuda" if on_gpu else "cpu"] += 1
        for operation in operations:
            operation.tensor = hosted(operation.tensor)
            assert operation.tensor.is_contiguous(), "NCCL sends contiguous tensors"
        return exchange(operations)

    def refused(name: str) -> Any:
        call = getattr(dist, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            assert not any(isinstance(x, OnGpu) for x in args), f"{name} of a GPU's tensor is not in a batch"
            return call(*args, **kwargs)

        return guarded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "batch_isend_irecv", batched)
        for name in ALONE:
            patch.setattr(dist, name, refused(name))
        yield batches
