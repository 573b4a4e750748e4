"""A second device for machines without a GPU: its tensors lie in ordinary memory and refuse operations with the CPU's.

The device is called `meta`, a name that torch accepts on every machine. `cpu`, `tolist` and `item` copy back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

AWAY = torch.device("meta")
aten = torch.ops.aten
MOVES = {aten.copy_.default}
HOSTED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations whose indices may lie on the host, as with CUDA."""


class Away(Tensor):
    """A tensor on the other device. `here` holds its numbers."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Away":
        new = Tensor._make_wrapper_subclass(
            cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(), dtype=here.dtype, device=AWAY
        )
        new.here = here
        return new

    def tolist(self) -> Any:
        return self.here.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("NumPy cannot read another device's memory")

    def __getitem__(self, at: Any) -> Tensor:
        return super().__getitem__(by_host(at))

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(by_host(at), value)

    @classmethod
    def __torch_dispatch__(cls, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return done(act, args, kwargs or {})


def by_host(at: Any) -> Any:
    """A list index as a tensor on the host. torch would create it on `meta`, without numbers."""
    return torch.tensor(at, dtype=torch.long) if isinstance(at, list) else at


class Elsewhere(TorchDispatchMode):
    """Creates tensors for the device `AWAY` there."""

    def __torch_dispatch__(self, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return done(act, args, kwargs or {})


def done(act: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the tensors' numbers. RuntimeError if it reads tensors of both devices."""
    tensors: list[Tensor] = []
    mapped(tensors.append, (*args, *kwargs.values()))
    far = [x for x in tensors if isinstance(x, Away)]
    near = [x for x in tensors if not isinstance(x, Away)]
    assert not any(x.device == AWAY for x in near), f"{act} got a tensor without numbers"
    if far and any(x.ndim for x in near) and act not in MOVES | HOSTED:
        raise RuntimeError(f"{act} reads tensors of two devices")
    device = kwargs.get("device")
    there = bool(far) if device is None else torch.device(device) == AWAY
    arguments = kwargs if device is None else kwargs | {"device": torch.device("cpu")}
    given = [mapped(hosted, x) for x in args]
    named = {name: mapped(hosted, x) for name, x in arguments.items()}
    same = {id(x.here): x for x in far}  # an operation in place returns its argument

    def back(x: Tensor) -> Tensor:
        known = same.get(id(x))
        return x if known is None and not there else Away(x) if known is None else known

    return mapped(back, act(*given, **named))


def hosted(x: Tensor) -> Tensor:
    """The tensor on the host with the numbers of `x`."""
    return x.here if isinstance(x, Away) else x


def mapped(change: Callable[[Tensor], Any], x: Any) -> Any:
    """`x` with `change` of each tensor in it. Quicker than torch's tree_map, and called for each operation."""
    if isinstance(x, Tensor):
        return change(x)
    return type(x)(mapped(change, y) for y in x) if type(x) in (list, tuple) else x


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The other device, for the duration of a block.

    Tensors from Python's numbers are created on the host and then moved. Inference mode becomes no_grad, because
    subclasses of tensors cannot enter it.
    """

    def moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(data: Any, *, device: Any = None, **more: Any) -> Tensor:
            here = make(data, **more)
            return here if device is None else here.to(device)

        return made

    def enter(self: Any) -> None:
        self.plain = torch.no_grad()
        self.plain.__enter__()

    overwrite = "torch.__future__._overwrite_module_params_on_conversion"
    with pytest.MonkeyPatch.context() as patch, Elsewhere():
        patch.setattr(overwrite, True)
        patch.setattr(torch, "tensor", moved(torch.tensor))
        patch.setattr(torch, "as_tensor", moved(torch.as_tensor))
        patch.setattr(torch.inference_mode, "__enter__", enter)
        patch.setattr(torch.inference_mode, "__exit__", lambda self, *error: self.plain.__exit__(*error))
        yield AWAY
