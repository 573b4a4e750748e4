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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from groupwise.core import BadData, Usage
from groupwise.learner.distributed import CPU, ReplicatedRanks
from groupwise.learner.rank_pulse import RankPulse, Store
from groupwise.models import Decoder, RowsOnDisk, WeightsOnDisk
from groupwise.models.decoder.transformers_model import TransformersBackbone

__all__ = ["ShardedRanks"]

M = TypeVar("M", bound=torch.nn.Module)
REPLY = 512
"""The bytes of a reply of each rank."""
Joint = Callable[[str], AbstractContextManager[None]]


class ShardedRanks(ReplicatedRanks):
    """Ranks that share the weights of each model by rows: `ceil(rows / size)` consecutive ones, the last ranks fewer.

    Each rank reads its rows of a model that has its weights `on_disk`, also rank 0. The other weights from which a new
    learner starts are those of rank 0, which sends the others their rows. Decoders may be on the meta device. `Usage`
    for a model that is no language model.
    """

    @property
    def shards(self) -> bool:
        return True

    def __init__(
        self, store: Store, pulse: RankPulse, lanes: int, *, deadline: float, patience: float = math.inf,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        super().__init__(store, pulse, lanes, deadline=deadline, patience=patience, device=device)
        self._mesh = init_device_mesh(device.type, (self.size,))
        self._model_dtypes = WeakIdKeyDictionary()

    def reduce_scatter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients themselves: backward has added them."""
        return list(gradients)

    def all_gather(self, slices: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the rows that this rank holds."""
        return list(slices)

    def held(self, model: M) -> M:
        """A new model with this rank's rows of the weights that `model` has on disk, or else on rank 0."""
        check_shardable(model)
        whole = model.state_dict()
        held = on_meta(model)
        layers: list[torch.nn.Module] = list(held.model.layers) if isinstance(held, Decoder) else []
        if isinstance(held, TransformersBackbone):
            layers, held.sharded = held.layers(), True
        precision = mixed_precision(next(model.parameters()).dtype)
        for module in (*layers, held):
            fully_shard(module, mesh=self._mesh, mp_policy=precision)
        held.to_empty(device=self.device)
        for module in _sharded_modules([held]):
            module.set_gradient_divide_factor(1.0)  # a sum, not a mean
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply before it adds
            module.set_custom_all_gather(cast(Any, _GatherWeights(self._joint)))
            module.set_custom_reduce_scatter(cast(Any, _AddGradients(self._joint, self.size)))
            module.unshard()  # pads the rows, after which their memory stays where it is
            module.reshard()
        on_disk = self._on_disk(model)
        with torch.no_grad():
            for mine, given in zip(held.buffers(), model.buffers(), strict=True):
                mine.copy_(given)  # such as rotary frequencies, which a model computes from its configuration
            for name, x in held.state_dict().items():
                if rows := on_disk and on_disk.stored(name):
                    self._read(rows, len(x), self.local(x))
                else:
                    self._scatter(whole[name], self.local(x))
        for mine, given in zip(held.parameters(), model.parameters(), strict=True):
            self._model_dtypes[mine] = given.dtype
        return held

    def copied(self, model: M, *, frozen: bool) -> M:
        """A sharded copy of a model. It shares no weights with another model."""
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

    @torch.no_grad()
    def weights(self, held: torch.nn.Module, model: torch.nn.Module, names: Sequence[str] = ()) -> dict[str, Tensor]:
        """Gather weights on rank 0, which sends the others a message with their names; they answer by this call.

        With `names` they are new tensors; else the trained ones are gathered into rank 0's `model`, and all returned.
        """
        if self.rank:
            for name in names:
                self._send_rows(held.get_parameter(name))
            return {}
        asked = names or [name for name, x in held.named_parameters() if x.requires_grad]
        self.send(json.dumps({"do": "weights", "names": asked}).encode() + b"\n")
        whole = {} if names else model.state_dict()
        for name in asked:
            parameter = held.get_parameter(name)
            if names:
                dtype = self._model_dtypes[parameter]
                whole[name] = torch.empty(parameter.shape, dtype=dtype, device=self.device)
            self._receive_rows(parameter, whole[name])
        return whole

    def _send_rows(self, parameter: Tensor) -> None:
        """Send this rank's rows of a weight to rank 0."""
        mine = self.local(parameter.detach()).to(self._model_dtypes[parameter])
        self._exchange_weights(dist.isend, [(mine.contiguous(), 0)])

    def _receive_rows(self, parameter: Tensor, whole: Tensor) -> None:
        """Copy the rows of all ranks to the whole weight, in place. Only rank 0 receives them."""
        first, *others = whole.split(rows_of_ranks(len(whole), self.size))
        first.copy_(self.local(parameter.detach()))
        self._exchange_weights(dist.irecv, [(rows, rank) for rank, rows in enumerate(others, 1)])

    def _exchange_weights(self, how: Callable[..., Any], parts: Sequence[tuple[Tensor, int]]) -> None:
        """Send tensors to other ranks, or receive them, in one batch: NCCL would make a communicator for each pair."""
        self.pulse.enter("weights")
        operations = [dist.P2POp(how, rows, rank) for rows, rank in parts if rows.numel()]
        if not operations:
            return
        with self.errors((), "weights"):
            works = dist.batch_isend_irecv(operations)
        for i, work in enumerate(works):  # with NCCL one for all
            with self.errors([operations[i].peer] if len(works) == len(operations) else (), "weights"):
                work.wait()

    @contextmanager
    def _joint(self, what: str) -> Iterator[None]:
        """The wait for all other ranks in a call of FSDP, in which all take part."""
        self.pulse.enter(what)
        with self.errors((), what):
            yield

    def replies(self, mine: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
        """A short JSON object of each rank, in their order. All ranks take part; `what` names it in errors."""
        content = json.dumps(mine).encode().ljust(REPLY)
        assert len(content) == REPLY, "a reply is short"
        every = self.gather(torch.frombuffer(bytearray(content), dtype=torch.uint8), [REPLY] * self.size, what)
        return [json.loads(part.numpy().tobytes()) for part in every.split(REPLY)]

    def _on_disk(self, model: torch.nn.Module) -> WeightsOnDisk | None:
        """The tensors of a model that each rank reads; None if rank 0 sends them. BadData if their files differ."""
        stored = model.on_disk if isinstance(model, Decoder) else None
        if stored is None:
            return None
        mine = torch.frombuffer(bytearray(stored.digest()), dtype=torch.uint8)
        every = self.gather(mine, [len(mine)] * self.size, "a hash of the model's files").split(len(mine))
        if others := [rank for rank, other in enumerate(every) if not torch.equal(other, every[0])]:
            file = next(iter(stored.tensors.values())).file
            raise BadData(
                f"rank {others[0]} has another model than rank 0 in {file.parent}",
                evidence="the names or the first numbers of its tensors differ",
                fix="copy the directory of rank 0 to the host of each rank",
            )
        return stored

    def _read(self, stored: RowsOnDisk, count: int, mine: Tensor) -> None:
        """Copy this rank's rows of a tensor with `count` rows from its file to `mine`."""
        if len(mine):
            mine.copy_(stored.rows(rows_before(count, self.size, self.rank), len(mine)))

    def _scatter(self, whole: Tensor, mine: Tensor) -> None:
        """Copy this rank's rows of rank 0's tensor to `mine`."""
        if self.rank:
            received = torch.empty_like(mine, dtype=whole.dtype)
            self._exchange_weights(dist.irecv, [(received, 0)])
            mine.copy_(received)
            return
        first, *others = whole.split(rows_of_ranks(len(whole), self.size))
        mine.copy_(first)
        parts = [(rows.to(self.device).contiguous(), rank) for rank, rows in enumerate(others, 1)]
        self._exchange_weights(dist.isend, parts)


def check_shardable(model: torch.nn.Module) -> None:
    """`Usage` for a model whose layers are not gathered by all ranks in one order, or that stores buffers."""
    plain = isinstance(model, Decoder | torch.nn.Linear) or type(model) is TransformersBackbone
    buffers = set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if plain and not buffers:
        return
    raise Usage(
        f"cluster.shard is full, and {type(model).__name__} cannot be sharded",
        evidence=f"it stores {min(buffers)}, which is no weight" if plain else "it is no language model of text alone",
        fix="use --cluster.shard none: each rank then holds all weights",
    )


def on_meta(model: M) -> M:
    """A copy of a model without weights: its tensors are on the meta device. Trained weights have at least float32."""
    weights: dict[int, torch.nn.Parameter] = {}
    for x in model.parameters():
        dtype = torch.promote_types(x.dtype, torch.float32) if x.requires_grad else x.dtype
        weights[id(x)] = torch.nn.Parameter(x.to("meta", dtype), x.requires_grad)
    copied = copy.deepcopy(model, weights)
    if isinstance(copied, Decoder):
        copied.on_disk = None
    return copied


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

    def __init__(self, joint: Joint) -> None:
        self.joint = joint

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _GatherWeights(_Collective):
    """Gathers the rows of a layer's weights."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        with self.joint("the weights of a layer"):
            dist.all_gather(list(output_tensor.split(input_tensor.numel())), input_tensor, group=group)


class _AddGradients(_Collective):
    """Adds the ranks' gradients of a layer in a binary tree, of which each rank keeps its rows."""

    def __init__(self, joint: Joint, size: int) -> None:
        super().__init__(joint)
        self.size = size

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        parts = torch.empty_like(input_tensor)
        with self.joint("the gradients of a layer"):
            dist.all_to_all_single(parts, input_tensor, group=group)
        sums = parts.view(self.size, -1)
        while len(sums) > 1:
            sums = sums[0::2].add_(sums[1::2])
        output_tensor.copy_(sums[0])
