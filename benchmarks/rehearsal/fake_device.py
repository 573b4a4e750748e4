"""Fake tensors in place of a GPU's weights and activations: their shapes, dtypes, memory and exchanges, no numbers.

A fake tensor is on the device `meta`. Token ids, lengths, masks and rewards are real, so a batch is cut as in a run. A
tensor is fake if it comes from a fake one, or if floating-point memory is allocated. The branches of the package for a
GPU run. Shards are on a mesh of CPUs, whose streams do nothing.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
import torch.distributed as dist
from benchmarks.rehearsal.exchanges import GATHER, RECEIVE, SEND, SWAP, Exchange
from tests import rms_norm_kernel
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401 - registers the backend "fake"
from torch.utils._python_dispatch import TorchDispatchMode

from groupwise.learner import distributed

__all__ = ["FakeDevice", "fake_device"]

aten = torch.ops.aten
READ_NUMBERS: Mapping[torch.dtype, float | int | bool] = {
    torch.float64: 1.0, torch.float32: 1.0, torch.bfloat16: 1.0, torch.int64: 1, torch.int32: 1, torch.bool: True,
}  # fmt: skip
"""The number that the package reads of a fake tensor, by dtype: losses, norms, counts. There are no others."""
ALLOCATIONS = {aten.empty.memory_format, aten.empty_strided.default, aten.zeros.default, aten.ones.default}
META = torch.device("meta")
is_fake = cast(Callable[[Tensor], bool], torch.Tensor.is_meta.__get__)
"""Whether a tensor is fake. For torch and the package, no tensor is on the device `meta` meanwhile."""
RESHAPING = {aten.resize_.default, aten.set_.source_Tensor, aten.squeeze_.dim, aten.t_.default, aten.transpose_.default}
"""Operations in place that change the shape of a tensor."""
CAPABILITY = (9, 0)
"""The compute capability of the pretended card, an H100."""
PEER = {SEND: 2, RECEIVE: 2}
"""The index of the argument that names the other rank."""


class DeviceMemory:
    """The bytes of all storages that exist now, and the most there were since `restart`."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def restart(self) -> None:
        self.peak = self.bytes

    def hold(self, storage: torch.UntypedStorage) -> None:
        """Count a storage from now until it is freed."""
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self._alive[key] = weakref.ref(storage, lambda _: self._change(key, None))
            self._change(key, storage.nbytes())

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count the new size of a storage, if it is counted."""
        if storage._cdata in self._sizes:
            self._change(storage._cdata, storage.nbytes())

    def _change(self, key: int, size: int | None) -> None:
        self.bytes += (size or 0) - self._sizes[key]
        self.peak = max(self.peak, self.bytes)
        self._sizes[key] = size or 0
        if size is None:
            del self._sizes[key], self._alive[key]


class FakeDevice(TorchDispatchMode):
    """Runs each operation on shapes if it concerns fake tensors, else on numbers. Records exchanges and memory."""

    def __init__(self, shapes: dict[Any, Any]) -> None:
        super().__init__()
        self.memory = DeviceMemory()
        self.exchanges: list[Exchange] = []
        self._sent: dict[tuple[int, ...], Tensor] = {}
        self._shapes = shapes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if DTensor in types:
            return NotImplemented  # it runs its operations on its local tensors, which come here
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE):
            return func(*args, **named)  # torch infers a shape
        if func.namespace == "c10d":
            return self._exchange(func, args, named)
        if any(is_fake(x) for x in tensors_in((args, tuple(named.values())))):
            if func is aten._local_scalar_dense.default:
                return READ_NUMBERS[args[0].dtype]
            args, named = fake_version(args), {name: fake_version(x) for name, x in named.items()}
        elif func is aten._to_copy.default:
            return func(*args, **{**named, "device": None})  # real numbers stay real on the device
        elif not allocates(func, named):
            return func(*args, **named)
        if named.get("device") is not None or func in ALLOCATIONS:
            named = {**named, "device": META}
        if func.is_view:
            return func(*args, **named)
        result = self._computed(func, args, named)
        for x in tensors_in((result,)):
            self.memory.hold(x.untyped_storage())
        return result

    def _computed(self, func: Any, args: Any, named: Mapping[str, Any]) -> Any:
        """The result of an operation on fake tensors. Its shapes are remembered: torch infers them slowly."""
        if func._schema.is_mutable:
            in_place = func._schema.name.endswith("_") and len(func._schema.returns) == 1
            return args[0] if in_place and func not in RESHAPING else func(*args, **named)
        key = func, described(args), tuple((name, described(x)) for name, x in named.items())
        if (shapes := self._shapes.get(key)) is not None:
            made = tuple(torch.empty_strided(size, stride, dtype=dtype, device=META) for size, stride, dtype in shapes)
            return made if len(func._schema.returns) > 1 else made[0]
        kernel = rms_norm_kernel.KERNELS[str(func)] if func.namespace == rms_norm_kernel.LIBRARY.ns else func
        result = kernel(*args, **named)
        found = result if isinstance(result, tuple) else (result,)
        storages = {x.untyped_storage()._cdata for x in tensors_in((args,))}
        if all(isinstance(x, Tensor) and x.untyped_storage()._cdata not in storages for x in found):
            self._shapes[key] = tuple(map(described, found))
        return result

    def _exchange(self, func: Any, args: Any, named: Any) -> Any:
        """Record an exchange. The backend gets other tensors, and a receiver of real numbers gets its own."""
        name = func.overloadpacket.__name__
        (group,) = (x for x in args if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type()))
        world = dist.ProcessGroup.unbox(group)
        tensor = next(tensors_in((args[0],) if name in (SEND, RECEIVE) else (args[1],)))
        peer = args[PEER[name]] if name in PEER else None
        self.exchanges.append(
            Exchange(
                operation=name, shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."),
                group=world.group_name, size=world.size(), nbytes=tensor.nbytes, peer=peer,
            )
        )  # fmt: skip
        assert name in (SEND, RECEIVE, GATHER, SWAP), f"the bytes of {name} are not known"
        if not is_fake(tensor):
            if name == SEND:
                self._sent[tuple(tensor.shape)] = tensor.clone()
            elif name == RECEIVE:
                tensor.copy_(self._sent.get(tuple(tensor.shape), torch.zeros_like(tensor)))
        other = torch.zeros(world.size())  # all ranks can divide it
        outcome = func(*(replaced(x, other) for x in args), **named)
        return (args[0], outcome[1]) if isinstance(outcome, tuple | list) else outcome


def allocates(func: Any, named: Mapping[str, Any]) -> bool:
    """Whether an operation allocates floating-point memory on the device."""
    if func not in ALLOCATIONS or torch.device(named.get("device") or "cpu").type == "meta":
        return False
    return (named.get("dtype") or torch.get_default_dtype()).is_floating_point


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in arguments and in lists of them."""
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif type(x) in (list, tuple):
            yield from tensors_in(x)


def fake_version(x: Any) -> Any:
    """An argument with fake tensors in place of real ones."""
    if isinstance(x, Tensor):
        return x if is_fake(x) else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=META)
    return [fake_version(y) for y in x] if type(x) in (list, tuple) else x


def described(x: Any) -> Any:
    """An argument, with shape, strides and dtype in place of a tensor, as a key of a dictionary."""
    if isinstance(x, Tensor):
        return x.shape, x.stride(), x.dtype
    return tuple(map(described, x)) if type(x) in (list, tuple) else (type(x), x)


def replaced(x: Any, other: Tensor) -> Any:
    """An argument of an exchange with another tensor in place of each tensor."""
    if isinstance(x, Tensor):
        return other
    return [replaced(y, other) for y in x] if type(x) in (list, tuple) else x


@contextmanager
def fake_device(shapes: dict[Any, Any]) -> Iterator[FakeDevice]:
    """A context in which tensors of the device are fake, and ranks exchange nothing.

    `shapes` remembers the shapes of results, for this rank and the next ones.
    """
    device, resize = FakeDevice(shapes), torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        device.memory.resized(storage)
        return result

    def numbers(x: Tensor) -> Any:
        if not is_fake(x):
            return tolist(x)
        listed: Any = READ_NUMBERS[x.dtype]
        for size in reversed(x.shape):
            listed = [listed] * size
        return listed

    tolist = Tensor.tolist
    with ExitStack() as stack:
        stack.enter_context(patch.object(Tensor, "is_meta", property(lambda _: False)))
        stack.enter_context(patch.object(Tensor, "is_cuda", property(is_fake)))
        stack.enter_context(patch.object(Tensor, "is_cpu", property(lambda x: not is_fake(x))))
        stack.enter_context(patch.object(Tensor, "tolist", numbers))
        stack.enter_context(patch.object(torch, "meta", torch.cpu, create=True))  # the streams of this device
        stack.enter_context(patch.object(FSDPParamGroup, "_validate_no_meta_params", lambda _: None))
        stack.enter_context(patch.object(torch.UntypedStorage, "resize_", resized))
        stack.enter_context(patch.object(torch.cuda, "get_device_capability", lambda _=None: CAPABILITY))
        stack.enter_context(patch.object(torch.nn.functional, "rms_norm", rms_norm_kernel.rms_norm))
        stack.enter_context(patch.dict(distributed.BACKENDS, {"cpu": "fake"}))
        stack.enter_context(patch.dict(dist.Backend.backend_capability, {"fake": ["cpu", "meta"]}))
        stack.enter_context(device)
        yield device
