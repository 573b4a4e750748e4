"""Ranks: the processes that share the work of one learner. Only the files of ranks use torch.distributed.

Rank r of R computes the microbatches `i` of a step with `i mod R = r`. Sums over ranks are a butterfly: in round k,
rank r adds the numbers of rank `r XOR 2^k` to its own. So the microbatches of a round form one binary tree, and a sum
has the same bits on every rank and for every number of ranks. Gradients are added by recursive halving: the same pairs
in the same order, but in each round a rank sends one half of its numbers and adds the other.
"""

import copy
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from groupwise.core import InvalidValue, WorkerLost, first_lines
from groupwise.learner.rank_pulse import RankPulse, RankWait, SilentRanks, Store
from groupwise.learner.rank_store import awaited, within

__all__ = ["Ranks", "ReplicatedRanks", "SingleProcess", "check_lanes"]

M = TypeVar("M", bound=torch.nn.Module)
START = timedelta(seconds=120)
"""The longest wait for the other ranks to start: they import torch and read the model."""
BUCKET = 32 << 20
"""The most bytes of several tensors that are sent together, in one copy."""
CPU = torch.device("cpu")
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""The backends for ranks on a kind of device. Messages and counts are on the CPU."""
BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
"""NCCL's variable with which a wait blocks the thread for at most the timeout, and raises, as with gloo."""


class ConnectionClosed(WorkerLost):
    """Another rank has closed its connection: its process ends, or has ended."""


@runtime_checkable
class Ranks(Protocol):
    """The processes that share a learner's work, seen from one of them: `rank` of `size`.

    `lanes` is the number of microbatches whose gradients are added in a fixed tree. With `shards`, a rank holds some
    rows of each weight, gradient and moment; else it holds all.
    """

    @property
    def shards(self) -> bool: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    @property
    def waiting(self) -> RankWait | None:
        """The present wait for other ranks, which it names as far as they are known. Seen from any thread."""
        ...

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the ranks, in place."""
        ...

    def gather(self, mine: Tensor, sizes: Sequence[int]) -> Tensor:
        """Concatenate the vectors of all ranks in their order; rank r has `sizes[r]` numbers."""
        ...

    def reduce_scatter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Sum the gradients of a microbatch over the ranks; this rank's slices of the sums. They may be overwritten.

        If a rank has all of each sum, or if backward has added the gradients, the slices are the gradients.
        """
        ...

    def all_gather(self, slices: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """The whole tensors, shaped as `like`, of which `reduce_scatter` gave each rank its slices."""
        ...

    def held(self, model: M) -> M:
        """The model as this rank holds it: itself, or a new model with this rank's rows of each weight."""
        ...

    def copied(self, model: M, *, frozen: bool) -> M:
        """A copy of a model, as this rank holds it. If it is `frozen`, no weight of it is trained."""
        ...

    def model_dtype(self, parameter: Tensor) -> torch.dtype:
        """The dtype in which a model computes with a parameter; the rows that a rank holds may be more precise."""
        ...

    def release(self, models: Iterable[torch.nn.Module]) -> None:
        """Free the weights that a forward pass has gathered from the other ranks."""
        ...

    def local(self, tensor: Tensor) -> Tensor:
        """The rows of a model's tensor that this rank holds."""
        ...

    def whole(self, shards: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
        """All-gather row shards: `shards[i]` is this rank's shard of tensor i, which has `rows[i]` rows in total."""
        ...

    def shard(self, whole: Tensor, like: Tensor) -> Tensor:
        """The rows of a whole tensor that this rank holds; `like` has their shape."""
        ...

    def weights(self, held: torch.nn.Module, model: torch.nn.Module, names: Sequence[str] = ()) -> dict[str, Tensor]:
        """The policy's whole tensors. If `held` has shards of them, they are gathered into the `model` of rank 0.

        With `names`, these are gathered into new tensors.
        """
        ...


def check_lanes(lanes: int, ranks: int) -> None:
    """`InvalidValue` unless `lanes` is a power of two that `ranks` divides.

    >>> check_lanes(4, 2)
    """
    if lanes < 1 or lanes & (lanes - 1):
        lower = 1 << max(1, lanes).bit_length() - 1
        raise InvalidValue(
            f"lanes is {lanes}: gradients are added in a binary tree",
            fix=f"use a power of two for lanes, such as {lower} or {2 * lower}",
        )
    if ranks < 1 or lanes % ranks:
        divisors = ", ".join(str(1 << k) for k in range(lanes.bit_length()))
        raise InvalidValue(f"{ranks} ranks do not divide {lanes} lanes", fix=f"use as many ranks as one of {divisors}")


def buckets(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Consecutive tensors of one dtype and at most `BUCKET` bytes; a larger tensor is alone.

    >>> [len(bucket) for bucket in buckets([torch.ones(2), torch.ones(3), torch.ones(2).double()])]
    [2, 1]
    """
    found: list[list[Tensor]] = []
    size = BUCKET
    for x in tensors:
        size += x.nbytes
        if size > BUCKET or x.dtype != found[-1][0].dtype:
            found.append([])
            size = x.nbytes
        found[-1].append(x)
    return list(found)


def _as_bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


class _WholeModels:
    """The part of `Ranks` about models, for ranks that hold whole models."""

    __slots__ = ()

    @property
    def shards(self) -> bool:
        return False

    def held(self, model: M) -> M:
        return model

    def copied(self, model: M, *, frozen: bool) -> M:
        """A copy of the model. Weights that are not trained are shared, not copied."""
        shared = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
        copied = copy.deepcopy(model, shared)
        return copied.requires_grad_(False) if frozen else copied

    def model_dtype(self, parameter: Tensor) -> torch.dtype:
        return parameter.dtype

    def release(self, models: Iterable[torch.nn.Module]) -> None:
        """Nothing was gathered."""

    def local(self, tensor: Tensor) -> Tensor:
        return tensor

    def whole(self, shards: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
        return list(shards)

    def shard(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole

    def weights(self, held: torch.nn.Module, model: torch.nn.Module, names: Sequence[str] = ()) -> dict[str, Tensor]:
        """The tensors themselves, not copies."""
        return dict(held.state_dict())


@dataclass(frozen=True, slots=True)
class SingleProcess(_WholeModels):
    """One process. With L lanes its results are bit-identical to a run on L ranks."""

    lanes: int = 1
    rank: int = field(default=0, init=False)
    size: int = field(default=1, init=False)
    waiting: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        check_lanes(self.lanes, 1)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""

    def reduce_scatter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        return list(gradients)

    def all_gather(self, slices: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        return list(slices)

    def gather(self, mine: Tensor, sizes: Sequence[int]) -> Tensor:
        return mine


class ReplicatedRanks(_WholeModels):
    """Ranks that each hold the whole model, over gloo, or NCCL on GPUs. `store` connects them; rank 0 serves it.

    `pulse` is that of this rank, whose context is open, and `device` its own GPU, or the CPU.
    Every wait ends after `deadline` seconds with `WorkerLost`, which names the ranks that did not answer; that for a
    message of rank 0 after `patience` seconds without a sign of life of rank 0. Numbers travel as tensors and messages
    as bytes: nothing is pickled.
    """

    def __init__(
        self, store: Store, pulse: RankPulse, lanes: int, *, deadline: float, patience: float = math.inf,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        check_lanes(lanes, pulse.size)
        self.pulse, self.rank, self.size, self.lanes = pulse, pulse.rank, pulse.size, lanes
        self.deadline, self.patience, self.device = deadline, patience, device
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)
            os.environ[BLOCKING] = "1"
        self._store, self._messages = store, 0
        longest = START.total_seconds() + deadline
        with self.errors((), "the start", longest):
            within(longest, self._meet)

    @property
    def waiting(self) -> RankWait | None:
        """The present wait for other ranks, which the pulses name."""
        return self.pulse.wait_named()

    def _meet(self) -> None:
        """Wait until all ranks have started, and connect to them."""
        self._store.set(f"started/{self.rank}", "")
        self._store.wait([f"started/{other}" for other in range(self.size)], START)
        timeout = timedelta(seconds=self.deadline)
        backend = BACKENDS[self.device.type]
        dist.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.size, timeout=timeout)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the ranks, in place: the same bits on every rank."""
        for hop in self._hops():
            for tensor in tensors:
                other = torch.empty_like(tensor, memory_format=torch.contiguous_format)
                tensor.add_(self.exchange(tensor.contiguous(), other, hop, "a sum"))

    def reduce_scatter(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Sum the gradients over the ranks by recursive halving: this rank's slice of each bucket.

        A rank sends `1 - 1/R` times the bytes of the gradients.
        """
        slices = []
        for flat in map(self._flat, buckets(gradients)):
            for hop in self._hops():
                halves = flat.chunk(2)
                kept, sent = halves[::-1] if self.rank & hop else halves
                flat = kept + self.exchange(sent, torch.empty_like(kept), hop, "a sum of gradients")
            slices.append(flat)
        return slices

    def all_gather(self, slices: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """The whole tensors from the slices, by recursive doubling; a rank sends `1 - 1/R` times their bytes.

        The tensors of a bucket share its memory.
        """
        tensors: list[Tensor] = []
        for flat, bucket in zip(slices, buckets(like), strict=True):
            for hop in reversed(self._hops()):
                other = self.exchange(flat, torch.empty_like(flat), hop, "the sums of gradients")
                flat = torch.cat([other, flat] if self.rank & hop else [flat, other])
            sizes = [x.numel() for x in bucket]
            parts = flat[: sum(sizes)].split(sizes)
            tensors += [part.view(x.shape) for part, x in zip(parts, bucket, strict=True)]
        return tensors

    def _flat(self, bucket: Sequence[Tensor]) -> Tensor:
        """The numbers of a bucket's tensors, and zeros up to a multiple of the number of ranks."""
        missing = -sum(x.numel() for x in bucket) % self.size
        parts = [x.flatten() for x in bucket] + [bucket[0].new_zeros(missing)] * bool(missing)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def gather(self, mine: Tensor, sizes: Sequence[int], what: str = "numbers of a microbatch") -> Tensor:
        """Concatenate the vectors of all ranks in their order; rank r has `sizes[r]` numbers."""
        assert mine.numel() == sizes[self.rank], "every rank knows the sizes of all"
        for hop in self._hops():
            first = (self.rank // hop ^ 1) * hop
            other = mine.new_empty(sum(sizes[first : first + hop]))
            self.exchange(mine, other, hop, what)
            mine = torch.cat([other, mine] if first < self.rank else [mine, other])
        return mine

    def send(self, message: bytes, own: Sequence[bytes] = ()) -> None:
        """Send a message to all other ranks, and after it to rank r `own[r]`, to it alone. Only rank 0 sends.

        It sends half of the ranks their parts together, which that half passes on, and so on: with R ranks,
        `log2(R)` sends of rank 0 one after the other, and a part crosses at most as many connections.
        """
        assert self.rank == 0, "rank 0 sends the messages"
        index, self._messages = self._messages, self._messages + 1
        own = own or [b""] * self.size
        sizes = [len(message), *map(len, own)]
        self.pulse.enter("a message")
        with self.errors((), "a message"):
            within(self.deadline, lambda: self._store.set(f"message/{index}", ",".join(map(str, sizes))))
        self._pass_on(_as_bytes(message), [_as_bytes(part) for part in own])

    def receive(self) -> bytes | None:
        """Wait for the next message of rank 0, with this rank's own part; None if rank 0 has ended.

        A rank without work waits while rank 0 samples: as long as rank 0 shows that it lives.
        """
        key, self._messages = f"message/{self._messages}", self._messages + 1
        self.pulse.enter("a message")
        try:
            size, *sizes = map(int, awaited(self._store, key, self.patience).split(b","))
        except dist.DistNetworkError:  # the connection is closed
            return None
        if not sizes:
            return None
        behind = self.rank & -self.rank  # this rank and those to which it passes on
        parts = [size, *sizes[self.rank : self.rank + behind]]
        content = self.receive_from(self.rank - behind, sum(parts))
        message, *own = content.split(parts)
        self._pass_on(message, own)
        return torch.cat([message, own[0]]).numpy().tobytes()

    def _pass_on(self, message: Tensor, own: Sequence[Tensor]) -> None:
        """Send a message, and the own parts of this rank and the next ones, to these: `len(own)` is a power of two."""
        while len(own) > 1:
            half = len(own) // 2
            self.send_to(self.rank + half, torch.cat([message, *own[half:]]))
            own = own[:half]

    def send_to(self, rank: int, content: Tensor) -> None:
        """Send bytes to another rank."""
        with self.errors([rank], "a message"):
            dist.send(content, rank)

    def receive_from(self, rank: int, size: int) -> Tensor:
        """Receive so many bytes of another rank."""
        content = torch.empty(size, dtype=torch.uint8)
        with self.errors([rank], "a message"):
            dist.recv(content, rank)
        return content

    def close(self) -> None:
        """Close the connections. The other ranks end: an empty message tells them, or else the closed connection."""
        if self.rank == 0:
            with suppress(dist.DistError, RuntimeError):
                self._store.set(f"message/{self._messages}", "0")
        if dist.is_initialized():
            dist.destroy_process_group()
        del self._store

    def _hops(self) -> list[int]:
        """The distances of the partners in the rounds of a butterfly: 1, 2, 4, ..."""
        return [1 << k for k in range((self.size - 1).bit_length())]

    def exchange(self, mine: Tensor, other: Tensor, hop: int, what: str) -> Tensor:
        """Send `mine` to the partner at distance `hop`, receive its tensor in `other`, and return that."""
        partner = self.rank ^ hop
        self.pulse.enter(what)
        with self.errors([partner], what):
            pair = (dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, other, partner))
            both = [operation for operation in pair if operation.tensor.numel()]
            for work in dist.batch_isend_irecv(both) if both else ():  # under NCCL, a send and a receive alone may hang
                work.wait()
        return other

    @contextmanager
    def errors(self, ranks: Sequence[int], what: str, seconds: float | None = None) -> Iterator[None]:
        """A wait of at most `seconds`, or `deadline`, for some `ranks`, or for all others: ().

        An error of torch.distributed becomes `WorkerLost`, which names the awaited ranks.
        """
        self.pulse.waiting = RankWait(tuple(ranks), what)
        try:
            yield
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise self._lost(error, seconds or self.deadline) from error
        self.pulse.waiting = None

    def _lost(self, error: Exception, seconds: float) -> WorkerLost:
        """The error for a wait that failed. It names the ranks that the pulses show, or else those of the wait.

        A connection that closes may be that of a rank that gave up before, because of the same ranks.
        """
        late = "imed out" in str(error) or "imeout" in str(error)
        self.pulse.leave()
        wait, named = self.pulse.waiting, self.pulse.wait_named()
        assert wait and named, "it failed in a wait"
        closed = "is gone"
        if named.silent or late or self.pulse.any_left():
            closed = "gives no sign of life" if named.silent else "has yet to arrive" if named != wait else closed
            wait = named
        how = f"did not answer within {seconds:g} s" if late else closed
        kind = SilentRanks if wait.silent else WorkerLost if late else ConnectionClosed
        return kind(
            f"rank {self.rank} waited for {wait.names}, which {how}: {wait.awaited_data}",
            evidence=first_lines([str(error).partition("\n")[0], *map(self.pulse.describe, wait.awaited_ranks)]),
            fix="continue from the last checkpoint with groupwise resume",
        )
