"""Shards: ranks that each hold some rows of every weight, gradient and moment, by FSDP2 (`fully_shard`).

A layer's weights are gathered before its forward and backward pass, and freed after it. Its gradients are added over
ranks as soon as its backward pass ends, each rank keeping its rows: ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277.
The sum over ranks is the binary tree of `lanes`, so shards have the bits of replicas.

The rows of trained bfloat16 weights are float32: they are the optimizer's master weights. Layers compute with them
rounded to bfloat16, and their gradients are added in float32. Frozen weights, such as the base of an adapter, stay
bfloat16.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from groupwise.core import Usage
from groupwise.learner.distributed import CPU, ReplicatedRanks
from groupwise.learner.rank_store import Store
from groupwise.models import Decoder

__all__ = ["ShardedRanks"]

M = TypeVar("M", bound=torch.nn.Module)
WEIGHTS = b'{"do": "weights"}\n'
"""The message with which rank 0 asks the other ranks to gather the weights with it."""
REPLY = 512
"""The bytes of a reply of each rank."""
Errors = Callable[[str, str], AbstractContextManager[None]]


class ShardedRanks(ReplicatedRanks):
    """Ranks that share the weights of each model by rows: `ceil(rows / size)` consecutive ones, the last ranks fewer.

    The models of rank 0 have the weights from which a new learner starts; the models of other ranks may be on the meta
    device. `Usage` for a model that is not a `Decoder`.
    """

    @property
    def shards(self) -> bool:
        return True

    def __init__(
        self, store: Store, rank: int, size: int, lanes: int, *, deadline: float, patience: float = math.inf,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        super().__init__(store, rank, size, lanes, deadline=deadline, patience=patience, device=device)
        self._mesh = init_device_mesh(device.type, (size,))
        self._model_dtypes = WeakIdKeyDictionary()

    def reduce_scatter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients themselves: backward has added them."""
        return list(gradients)

    def all_gather(self, slices: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the rows that this rank holds."""
        return list(slices)

    def held(self, model: M) -> M:
        """A new model with this rank's rows of the weights that rank 0's `model` has."""
        if not isinstance(model, Decoder | torch.nn.Linear):
            raise Usage(
                f"cluster.shard is full, and {type(model).__name__} cannot be sharded",
                evidence="all ranks gather the layers of a Decoder in one order; experts and modules of transformers "
                "may be left out by one rank",
                fix="use --cluster.shard none, or a Llama, Mistral or Qwen model without experts",
            )
        whole = model.state_dict()
        held = on_meta(model)
        layers = list(held.model.layers) if isinstance(held, Decoder) else []
        precision = mixed_precision(next(model.parameters()).dtype)
        for module in (*layers, held):
            fully_shard(module, mesh=self._mesh, mp_policy=precision)
        held.to_empty(device=self.device)
        for module in _sharded_modules([held]):
            module.set_gradient_divide_factor(1.0)  # a sum, not a mean
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply before it adds
            module.set_custom_all_gather(cast(Any, _GatherWeights(self.errors)))
            module.set_custom_reduce_scatter(cast(Any, _AddGradients(self.errors, self.size)))
            module.unshard()  # pads the rows, after which their memory stays where it is
            module.reshard()
        with torch.no_grad():
            for name, x in held.state_dict().items():
                self._scatter(whole[name], self.local(x))
        for mine, given in zip(held.parameters(), model.parameters(), strict=True):
            self._model_dtypes[mine] = given.dtype
        return held

    def copied(self, model: M, *, frozen: bool) -> M:
        """A sharded copy of rank 0's model. It shares no weights with another model."""
        trained = [x for x in model.parameters() if x.requires_grad and frozen]
        try:
            for x in trained:
                x.requires_grad_(False)
            return self.held(model)
        finally:
            for x in trained:
                x.requires_grad_(True)

    def model_dtype(self, parameter: Tensor) -> torch.dtype:
        return self._model_dtypes[parameter]

    def release(self, models: Iterable[torch.nn.Module]) -> None:
        for module in _sharded_modules(models):
            module.reshard()

    def local(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, DTensor), "the tensors of a sharded model are sharded"
        return tensor.to_local()

    def whole(self, shards: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
        if all(count % self.size == 0 for count in rows):  # a view for each tensor, not for each tensor and rank
            counts = [shard.numel() for shard in shards]
            every = self.gather(torch.cat([shard.flatten() for shard in shards]), [sum(counts)] * self.size)
            columns = every.view(self.size, -1).split(counts, 1)
            return [x.reshape(count, *shard.shape[1:]) for x, count, shard in zip(columns, rows, shards, strict=True)]
        widths = [math.prod(shard.shape[1:]) for shard in shards]
        shares = [rows_of_ranks(count, self.size) for count in rows]
        sizes = [[share[rank] * width for share, width in zip(shares, widths)] for rank in range(self.size)]
        every = self.gather(torch.cat([shard.flatten() for shard in shards]), [sum(each) for each in sizes])
        pieces = every.split([size for each in sizes for size in each])
        return [
            torch.cat(pieces[i :: len(shards)]).view(count, *shard.shape[1:])
            for i, (count, shard) in enumerate(zip(rows, shards))
        ]

    def shard(self, whole: Tensor, like: Tensor) -> Tensor:
        if whole.shape == like.shape:
            return whole
        return whole[rows_before(len(whole), self.size, self.rank) :][: len(like)]

    def weights(self, held: torch.nn.Module, model: torch.nn.Module) -> dict[str, Tensor]:
        """Gather the trained tensors into the `model` of rank 0, one after the other, and return all of them."""
        if self.rank == 0:
            self.send(WEIGHTS)
        trained = {name for name, x in held.named_parameters() if x.requires_grad}
        tensors = model.state_dict()
        with torch.no_grad():
            for name, x in held.state_dict().items():
                if name in trained:
                    (every,) = self.whole([self.local(x).to(tensors[name].dtype)], [len(x)])
                    if self.rank == 0:
                        tensors[name].copy_(every)
        return dict(tensors)

    def replies(self, mine: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A short JSON object of each rank, in their order. All ranks take part."""
        content = json.dumps(mine).encode().ljust(REPLY)
        assert len(content) == REPLY, "a reply is short"
        every = self.gather(torch.frombuffer(bytearray(content), dtype=torch.uint8), [REPLY] * self.size)
        return [json.loads(part.numpy().tobytes()) for part in every.split(REPLY)]

    def _scatter(self, whole: Tensor, mine: Tensor) -> None:
        """Copy this rank's rows of rank 0's tensor to `mine`."""
        if self.rank:
            received = torch.empty_like(mine, dtype=whole.dtype)
            if received.numel():
                with self.errors("rank 0", "weights"):
                    dist.recv(received, 0)
            mine.copy_(received)
            return
        first, *others = whole.split(rows_of_ranks(len(whole), self.size))
        mine.copy_(first)
        for rank, rows in enumerate(others, 1):
            if rows.numel():
                with self.errors(f"rank {rank}", "weights"):
                    dist.send(rows.to(self.device).contiguous(), rank)


def on_meta(model: M) -> M:
    """A copy of a model without weights: its tensors are on the meta device. Trained weights have at least float32."""
    weights: dict[int, torch.nn.Parameter] = {}
    for x in model.parameters():
        dtype = torch.promote_types(x.dtype, torch.float32) if x.requires_grad else x.dtype
        weights[id(x)] = torch.nn.Parameter(x.to("meta", dtype), x.requires_grad)
    return copy.deepcopy(model, weights)


def mixed_precision(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """The dtypes of FSDP for a model that computes in `dtype`: a layer's weights, and the sums of its gradients."""
    if dtype.itemsize >= 4:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def rows_of_ranks(count: int, size: int) -> list[int]:
    """The number of rows that each of `size` ranks holds of a tensor with `count` rows.

    >>> rows_of_ranks(5, 4)
    [2, 2, 1, 0]
    """
    return [min(-(-count // size), count - rows_before(count, size, rank)) for rank in range(size)]


def rows_before(count: int, size: int, rank: int) -> int:
    """The number of rows that the ranks before `rank` hold."""
    return min(count, rank * -(-count // size))


def _sharded_modules(models: Iterable[torch.nn.Module]) -> list[FSDPModule]:
    return [module for model in models for module in model.modules() if isinstance(module, FSDPModule)]


class _Collective:
    """Base of FSDP's communication: errors name the other ranks, and every wait has a deadline."""

    def __init__(self, errors: Errors) -> None:
        self.errors = errors

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _GatherWeights(_Collective):
    """Gathers the rows of a layer's weights."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        with self.errors("another rank", "the weights of a layer"):
            dist.all_gather(list(output_tensor.split(input_tensor.numel())), input_tensor, group=group)


class _AddGradients(_Collective):
    """Adds the ranks' gradients of a layer in a binary tree, of which each rank keeps its rows."""

    def __init__(self, errors: Errors, size: int) -> None:
        super().__init__(errors)
        self.size = size

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        parts = torch.empty_like(input_tensor)
        with self.errors("another rank", "the gradients of a layer"):
            dist.all_to_all_single(parts, input_tensor, group=group)
        sums = parts.view(self.size, -1)
        while len(sums) > 1:
            sums = sums[0::2].add_(sums[1::2])
        output_tensor.copy_(sums[0])
