"""A device that is not the processor's, for machines without one: its tensors lie in ordinary memory, and refuse to
meet what has not been moved to them, as a GPU's do.

It goes by the name of `meta`, which torch allows any machine to have. Numbers come back by `cpu`, `tolist`, `item`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

AWAY = torch.device("meta")
aten = torch.ops.aten
MOVES = {aten.copy_.default}
HOSTED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Indices may lie on the host: CUDA fetches them."""


class Away(Tensor):
    """A tensor on the other device; `here` is what it holds."""

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
    """A list of places as a tensor on the host: torch would make one on the device that holds nothing."""
    return torch.tensor(at, dtype=torch.long) if isinstance(at, list) else at


class Elsewhere(TorchDispatchMode):
    """Whatever is made for `AWAY` is made there."""

    def __torch_dispatch__(self, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return done(act, args, kwargs or {})


def done(act: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on what tensors hold. RuntimeError where it would read both devices."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    far = [x for x in tensors if isinstance(x, Away)]
    near = [x for x in tensors if not isinstance(x, Away)]
    assert not any(x.device == AWAY for x in near), f"{act} met a tensor that holds nothing"
    if far and any(x.ndim for x in near) and act not in MOVES | HOSTED:
        raise RuntimeError(f"{act} reads tensors of two devices")
    device = kwargs.get("device")
    there = bool(far) if device is None else torch.device(device) == AWAY
    told = kwargs if device is None else kwargs | {"device": torch.device("cpu")}
    given, named = tree_map(lambda x: x.here if isinstance(x, Away) else x, (args, told))
    same = {id(x.here): x for x in far}  # what an operation in place returns is what it was given

    def back(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return same.get(id(x), Away(x) if there else x)

    return tree_map(back, act(*given, **named))


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The other device. What torch makes of Python's numbers goes there by way of the host; nothing is in inference
    mode, which subclasses of tensors cannot enter."""

    def moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(data: Any, *, device: Any = None, **more: Any) -> Tensor:
            here = make(data, **more)
            return here if device is None else here.to(device)

        return made

    def enter(self: Any) -> None:
        self.plain = torch.no_grad()
        self.plain.__enter__()

    overwrite = "torch.__future__._overwrite_module_params_on_conversion"  # what a parameter holds cannot be exchanged
    with pytest.MonkeyPatch.context() as patch, Elsewhere():
        patch.setattr(overwrite, True)
        patch.setattr(torch, "tensor", moved(torch.tensor))
        patch.setattr(torch, "as_tensor", moved(torch.as_tensor))
        patch.setattr(torch.inference_mode, "__enter__", enter)
        patch.setattr(torch.inference_mode, "__exit__", lambda self, *error: self.plain.__exit__(*error))
        yield AWAY
