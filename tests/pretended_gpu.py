"""A pretended GPU for machines without one: its tensors say `cuda:0`, and their numbers lie in ordinary memory.

As on CUDA, an operation that reads tensors of both devices is refused. Each block can count the kernels, the waits of
the host for the device, the copies both ways and the work in float64. The branches of the package for `cuda` run. Times
and memory are not those of a GPU, and rounding is the CPU's.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from tests import rms_norm_kernel, varlen_kernel

GPU = torch.device("cuda", 0)
NAME, MEMORY = "Pretended 80GB", 80 << 30

aten = torch.ops.aten
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations whose indices may lie on the host, as with CUDA: they are copied to the device."""
FUSED = varlen_kernel.KERNELS | rms_norm_kernel.KERNELS
"""Operators that only a GPU has, each with its reference."""
COPIES = {aten.copy_.default, aten._to_copy.default}
FREE = {
    *("_local_scalar_dense", "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty"),
    *("empty_like", "empty_strided", "expand", "expand_as", "flatten", "lift_fresh", "movedim", "narrow", "new_empty"),
    *("new_empty_strided", "numpy_T", "permute", "reshape", "resize_", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "is_same_size"),
}
"""Operations that launch no kernel: views, and memory without contents."""
KERNELS = {"sort": 4, "_unique2": 8, "nonzero": 3, "masked_scatter": 3, "masked_scatter_": 3, "topk": 2}
"""Operations of several kernels. The others count as one: a floor, which torch's profiler can only exceed."""
WAITS = {
    *("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "equal"),
    *("is_nonzero", "repeat_interleave"),
}
"""Operations whose result, or its size, the host reads."""


@dataclass
class Counts:
    """The work of one block on the device, and between host and device."""

    kernels: int = 0
    waits: int = 0
    """The host waits for the device: a number or a size is read, or a tensor is copied to the host."""
    to_device: int = 0
    to_host: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    float64: int = 0
    """Kernels whose result is float64."""
    largest: int = 0
    """The bytes of the largest result of a kernel."""
    operations: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    """The lines of the package at which the host waits."""
    trace: list[tuple[Any, ...]] = field(default_factory=list)
    """Each operation on the device with the shapes of its tensors: a CUDA graph replays equal traces."""

    def wait(self, what: str) -> None:
        self.waits += 1
        self.places[f"{what} at {_line()}"] += 1

    def upload(self, x: Tensor) -> None:
        self.to_device += 1
        self.bytes_to_device += x.nbytes

    def download(self, x: Tensor, what: str) -> None:
        self.to_host += 1
        self.bytes_to_host += x.nbytes
        self.wait(what)


COUNTING: list[Counts] = []
"""The counts of all blocks that count now."""


@contextmanager
def counted() -> Iterator[Counts]:
    """Count the work of a block."""
    counts = Counts()
    COUNTING.append(counts)
    try:
        yield counts
    finally:
        COUNTING[:] = [c for c in COUNTING if c is not counts]


def _line() -> str:
    """The innermost line of the package, else of a test, that is running."""
    frame, test = sys._getframe(1), "?"
    while frame:
        name = frame.f_code.co_filename
        if "/groupwise/" in name:
            return f"{name.rsplit('/groupwise/', 1)[1]}:{frame.f_lineno}"
        if test == "?" and "/tests/" in name and not name.endswith("pretended_gpu.py"):
            test = f"{name.rsplit('/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return test


class OnGpu(Tensor):
    """A tensor on the pretended GPU. `here` holds its numbers. For torch's own code it is on the device `meta`."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor, requires_grad: bool = False) -> "OnGpu":
        new = Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype,
            device="meta", requires_grad=requires_grad,
        )  # fmt: skip
        new.here = here
        return new

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.here!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = self.detach().clone()
        memo[id(self)] = result = nn.Parameter(copy, self.requires_grad) if isinstance(self, nn.Parameter) else copy
        return result

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def tolist(self) -> Any:
        for counts in COUNTING:
            counts.download(self.here, "tolist")
        return self.here.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy: NumPy cannot read the device's memory")

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """`self` if nothing changes, as torch does; it would compare the other device with `meta`."""
        _, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs) if not _is_tensor(args) else (None, args[0].dtype)
        device = args[0].device if _is_tensor(args) else torch._C._nn._parse_to(*args, **kwargs)[0]
        stays = device is None or _on_gpu(device)
        if stays and dtype in (None, self.dtype) and not kwargs.get("copy"):
            return self
        return super().to(dtype=dtype or self.dtype, device="meta" if stays else device, copy=kwargs.get("copy", False))

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        return self

    def __getitem__(self, at: Any) -> Tensor:
        return super().__getitem__(_host_index(at))

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(_host_index(at), value)

    @classmethod
    def __torch_dispatch__(cls, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(act, args, kwargs or {})


def _is_tensor(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], Tensor)


def _on_gpu(device: Any) -> bool:
    """Whether a device is the pretended one. torch's own code knows it as `meta`."""
    return torch.device(device).type in ("cuda", "meta")


def _host_index(at: Any) -> Any:
    """A list or range in an index as a tensor on the host. torch would create it on `meta`, without numbers."""
    at = list(at) if isinstance(at, range) else at
    if isinstance(at, list):
        return torch.tensor(at, dtype=torch.bool if at and isinstance(at[0], bool) else torch.long)
    return tuple(map(_host_index, at)) if isinstance(at, tuple) else at


class OnTheGpu(TorchDispatchMode):
    """Runs each operation; creates tensors for the pretended device there."""

    def __torch_dispatch__(self, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(act, args, kwargs or {})


def run(act: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the tensors' numbers. RuntimeError if it reads tensors of both devices."""
    tensors: list[Tensor] = []
    mapped(tensors.append, (*args, *kwargs.values()))
    far = [x for x in tensors if isinstance(x, OnGpu)]
    near = [x for x in tensors if not isinstance(x, OnGpu) and x.ndim]
    assert not any(x.device.type == "meta" for x in near), f"{act} got a tensor without numbers"
    device = kwargs.get("device")
    there = bool(far) if device is None else _on_gpu(device)
    if far and near and act not in COPIES | INDEXED:
        shapes = [(str(x.device), tuple(x.shape)) for x in tensors]
        raise RuntimeError(f"{act} reads tensors of two devices, cuda:0 and cpu: {shapes}")
    if there and kwargs.get("generator") is not None:
        raise RuntimeError(f"{act} on cuda:0 got a generator of the CPU")
    for counts in COUNTING:
        count(counts, act, args, tensors, far, there)
    arguments = kwargs if device is None else kwargs | {"device": torch.device("cpu")}
    given = [mapped(hosted, x) for x in args]
    named = {name: mapped(hosted, x) for name, x in arguments.items()}
    same = {id(x.here): x for x in far}  # an operation in place returns its argument

    def back(x: Tensor) -> Tensor:
        known = same.get(id(x))
        return x if known is None and not there else OnGpu(x) if known is None else known

    result = mapped(back, FUSED.get(str(act), act)(*given, **named))
    if COUNTING and there and name_of(act) not in FREE:
        mapped(lambda x: [measure(counts, x) for counts in COUNTING], result)
    return result


def name_of(act: Any) -> str:
    return act.overloadpacket.__name__


def count(counts: Counts, act: Any, args: Any, tensors: list[Tensor], far: list["OnGpu"], there: bool) -> None:
    """Add one operation to the counts."""
    name = name_of(act)
    near = [x for x in tensors if not isinstance(x, OnGpu)]
    if act in COPIES:
        to_gpu, source = (isinstance(args[0], OnGpu), args[1]) if act is aten.copy_.default else (there, args[0])
        if to_gpu and not isinstance(source, OnGpu):
            counts.upload(source)
            return
        elif not to_gpu and isinstance(source, OnGpu):
            counts.download(source.here, name)
            return
    elif far and act in INDEXED:
        for x in near:
            if x.ndim:
                counts.upload(x)
        if any(x.dtype == torch.bool for x in tensors[1:] if x.ndim):
            counts.wait(f"{name} by a mask")
    if not (far or there):
        return
    if name in WAITS:
        counts.wait(name)
    if name not in FREE:
        counts.kernels += KERNELS.get(name, 1)
        counts.operations[name] += 1
        counts.trace.append((str(act), *(tuple(x.shape) for x in tensors)))


def measure(counts: Counts, x: Tensor) -> None:
    """Add the result of a kernel to the counts."""
    counts.float64 += x.dtype == torch.float64
    counts.largest = max(counts.largest, x.nbytes)


def hosted(x: Tensor) -> Tensor:
    """The tensor on the host with the numbers of `x`."""
    return x.here if isinstance(x, OnGpu) else x


def mapped(change: Callable[[Tensor], Any], x: Any) -> Any:
    """`x` with `change` of each tensor in it. Quicker than torch's tree_map, and called for each operation."""
    if isinstance(x, Tensor):
        return change(x)
    return type(x)(mapped(change, y) for y in x) if type(x) in (list, tuple) else x


@contextmanager
def pretended_gpu(*, bfloat16: bool = True, count: int = 1) -> Iterator[torch.device]:
    """The pretended GPU, for the duration of a block, in which torch reports it, or `count` GPUs.

    Tensors from Python's numbers are created on the host and then moved. Inference mode becomes no_grad, because
    subclasses of tensors cannot enter it.
    """

    def moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(data: Any, *, device: Any = None, **more: Any) -> Tensor:
            if isinstance(data, OnGpu):
                return data.to(device or GPU, more.get("dtype") or data.dtype)
            here = make(data, **more)
            return here if device is None else here.to(device)

        return made

    def enter(self: Any) -> None:
        self.plain = torch.no_grad()
        self.plain.__enter__()

    to = Tensor.to

    def with_index(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to`, which asks a driver for the index of `cuda`."""
        args = tuple(GPU if isinstance(x, (str, torch.device)) and _on_gpu(x) else x for x in args)
        return to(self, *args, **kwargs | ({"device": GPU} if _on_gpu(kwargs.get("device") or "cpu") else {}))

    properties = SimpleNamespace(name=NAME, total_memory=MEMORY, major=9, minor=0, multi_processor_count=132)
    reported: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True, "device_count": lambda: count, "current_device": lambda: 0,
        "get_device_name": lambda device=None: NAME, "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (9, 0), "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: bfloat16,
        "_lazy_init": lambda: None, "empty_cache": lambda: None, "synchronize": lambda device=None: None,
    }  # fmt: skip
    overwrite = "torch.__future__._overwrite_module_params_on_conversion"
    _device_constructors()  # torch remembers them, and below `torch.tensor` is another function
    with pytest.MonkeyPatch.context() as patch, OnTheGpu():
        patch.setattr(overwrite, True)
        patch.setattr(torch, "tensor", moved(torch.tensor))
        patch.setattr(torch, "as_tensor", moved(torch.as_tensor))
        patch.setattr(Tensor, "to", with_index)
        patch.setattr(nn.functional, "rms_norm", rms_norm_kernel.rms_norm)
        patch.setattr(torch.inference_mode, "__enter__", enter)
        patch.setattr(torch.inference_mode, "__exit__", lambda self, *error: self.plain.__exit__(*error))
        for name, answer in reported.items():
            patch.setattr(torch.cuda, name, answer)
        yield GPU
        # A test's own patch would end after the block, and put the pretended function back for all later tests.
        others = [name for name, answer in reported.items() if getattr(torch.cuda, name) is not answer]
        assert not others, f"a test patches {others} of torch.cuda: use an argument of pretended_gpu"
