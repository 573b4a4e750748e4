"""Weights on the learner's GPU, which vLLM engines load without a file. *Not run*: no GPU was at hand.

The engine's side is vLLM's weight transfer (`vllm.distributed.weight_transfer`, version 0.32), in `vllm_engine`. An
engine on the learner's GPU maps the memory (backend `ipc`); one on another GPU, of this host or of one to which the
command line permits NCCL, receives it (backend `nccl`). Handles and ids are plain values in messages of the wire, and
no pickle is read.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.cuda import nccl
from torch.multiprocessing import reductions

from groupwise.core import EngineLost, Usage, in_daemon_thread
from groupwise.engines.remote.wire import IDS, whole

ON_GPU = "gpu"
"""What a message to an engine has in place of the hash of weights on the learner's GPU."""
TRANSFERS = IPC, NCCL = "ipc", "nccl"
"""vLLM's names of the transfers: to an engine on the learner's GPU, and to one on another GPU."""
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo"}
"""Environment variables with which the ranks of a transfer meet on this host only, since NCCL does not encrypt. Values
of the user, and those towards other hosts (`cluster.network_interface`), stay: NCCL reads them once in a process."""
PLAIN = (
    "storage_handle", "storage_size_bytes", "storage_offset_bytes", "ref_counter_handle", "ref_counter_offset",
    "event_handle", "event_sync_required",
)  # fmt: skip
"""The arguments of torch's `rebuild_cuda_tensor` that describe the memory of a flat tensor of bytes."""
MOST_TENSORS, LONGEST_NAME = 1 << 20, 1024
"""Bounds of a description."""

Answer = dict[str, Any]
Load = Callable[..., Awaitable[Answer]]
"""Sends an engine a `load` with these fields, and waits for its reply."""


class GpuWeights:
    """A copy of the weights of one version on the learner's GPU, as one block of bytes.

    So an optimizer step does not change the weights that an engine loads while the learner trains. Wider numbers come
    first: each tensor is aligned. The block is freed by `release`, and once no engine maps it.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        tensors = sorted(weights.items(), key=lambda item: -item[1].element_size())
        self.packed: Tensor | None = torch.cat([bytes_of(x) for _, x in tensors])
        self.tensors = PackedTensorLayout.of(tensors)
        self.gpu = gpu_uuid(self.packed.device)
        torch.cuda.synchronize(self.packed.device)

    def release(self) -> None:
        """Free the block, before the learner trains. No engine may load it afterwards."""
        self.packed = None

    async def send(self, load: Load, gpu: str) -> Answer:
        """Let the engine on the GPU with this UUID load the weights. Returns its reply."""
        packed = self.packed
        if packed is None:
            raise EngineLost("the weights on the GPU were freed", fix="load the next version")
        if not gpu:
            what = "the engine does not load weights from the learner's GPU"
            fix = "use --engine-exchange DIR: a file; on another host: groupwise serve --nccl, or drop --engine-nccl"
            raise Usage(what, fix=fix)
        fields = self.tensors.as_json()
        if gpu == self.gpu:
            return await load(transfer=IPC, handle=exported(packed), **fields)
        for name, interface in LOOPBACK.items():
            os.environ.setdefault(name, interface)
        unique_id = nccl.unique_id()
        # A daemon: NCCL waits for a lost rank for ever.
        sent = asyncio.ensure_future(in_daemon_thread(broadcast, packed, self.tensors, unique_id))
        loaded = asyncio.ensure_future(load(transfer=NCCL, handle={"unique_id": unique_id.hex()}, **fields))
        try:
            await asyncio.wait({sent, loaded}, return_when=asyncio.FIRST_EXCEPTION)
            if sent.done():
                sent.result()
            return await loaded
        finally:
            loaded.cancel()


@dataclass(frozen=True, slots=True)
class PackedTensorLayout:
    """The tensors of a block in their order: names, names of dtypes, and shapes."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    @classmethod
    def of(cls, tensors: list[tuple[str, Tensor]]) -> "PackedTensorLayout":
        """The description of these tensors."""
        dtypes = [str(x.dtype).removeprefix("torch.") for _, x in tensors]
        return cls([name for name, _ in tensors], dtypes, [list(x.shape) for _, x in tensors])

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> "PackedTensorLayout":
        """The description in a message. ValueError for anything that `as_json` does not give."""
        names, dtypes, shapes = (message.get(name) for name in cls.__slots__)
        lists = [x for x in (names, dtypes, shapes) if isinstance(x, list) and len(x) <= MOST_TENSORS]
        if len(lists) != 3 or len({len(x) for x in lists}) != 1:
            raise ValueError("weights on a GPU have lists of names, dtype_names and shapes, of equal lengths")
        if not all(isinstance(x, str) and len(x) <= LONGEST_NAME for x in (*lists[0], *lists[1])):
            raise ValueError("a tensor's name and dtype are texts")
        if not all(isinstance(dtype_of(x), torch.dtype) for x in lists[1]):
            raise ValueError("a tensor has an unknown dtype")
        if not all(isinstance(x, list) for x in lists[2]):
            raise ValueError("a shape is a list of sizes")
        return cls(lists[0], lists[1], [[whole("size", n, 0, IDS) for n in x] for x in lists[2]])

    def as_json(self) -> dict[str, Any]:
        """The fields of a message, with vLLM's names."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def bytes(self) -> int:
        """The bytes of the block."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each tensor."""
        numbers = (torch.Size(shape).numel() for shape in self.shapes)
        return [n * dtype_of(dtype).itemsize for n, dtype in zip(numbers, self.dtype_names, strict=True)]


def dtype_of(name: str) -> Any:
    """torch's dtype of this name; None for another name."""
    return dtype if isinstance(dtype := getattr(torch, name, None), torch.dtype) else None


def bytes_of(x: Tensor) -> Tensor:
    """The numbers of a tensor as a vector of bytes."""
    return x.detach().contiguous().view(-1).view(torch.uint8)


def gpu_uuid(device: torch.device) -> str:
    """The UUID of a GPU, which does not depend on the devices that a process sees."""
    return str(torch.cuda.get_device_properties(device).uuid)


def exported(packed: Tensor) -> dict[str, Any]:
    """The handle of a block for one engine, as plain values. torch counts its users, so each engine needs a new one."""
    _, arguments = reductions.reduce_tensor(packed)
    named = dict(zip(signature(reductions.rebuild_cuda_tensor).parameters, arguments, strict=True))
    return {name: x.hex() if isinstance(x := named[name], bytes) else x for name in PLAIN}


def imported(handle: Mapping[str, Any], size: int) -> tuple[Any, ...]:
    """The arguments of `rebuild_cuda_tensor` for a handle of a block of `size` bytes, on the first visible GPU.

    ValueError for anything that `exported` does not give.
    """
    if not all(isinstance(handle.get(name), str | int) for name in PLAIN):
        raise ValueError(f"a handle of memory on a GPU has {', '.join(PLAIN)}")
    block = {name: bytes.fromhex(x) if isinstance(x := handle[name], str) else x for name in PLAIN}
    flat = {"tensor_cls": Tensor, "tensor_size": torch.Size([size]), "tensor_stride": (1,), "tensor_offset": 0,
            "storage_cls": torch.storage.TypedStorage, "dtype": torch.uint8, "storage_device": 0,
            "requires_grad": False}  # fmt: skip
    return tuple((flat | block)[name] for name in signature(reductions.rebuild_cuda_tensor).parameters)


def broadcast(packed: Tensor, tensors: PackedTensorLayout, unique_id: bytes) -> None:
    """Send each tensor of a block to the other rank of a new communicator of two ranks, as rank 0.

    vLLM's rank first adds one number over the ranks (`PyNcclCommunicator.from_unique_id_bytes`).
    """
    with torch.cuda.device(packed.device):
        stream = torch.cuda.Stream(packed.device)
        communicator = nccl.init_rank(2, unique_id, 0)
        with torch.cuda.stream(stream):
            one = torch.zeros(1, device=packed.device)
            nccl.all_reduce([one], streams=[stream], comms=[communicator])
            for part, dtype in zip(packed.split(tensors.sizes), tensors.dtype_names, strict=True):
                nccl.broadcast([part.view(dtype_of(dtype))], streams=[stream], comms=[communicator])
        stream.synchronize()
