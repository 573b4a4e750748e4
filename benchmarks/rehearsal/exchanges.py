"""The exchanges of ranks: how many bytes each sends, and whether all of them end or some rank waits for ever."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.core import WorkerLost

__all__ = ["Exchange", "replay", "sent_bytes"]

SEND, RECEIVE = "send", "recv_"
MESSAGE = "message"
"""A send of bytes: a message of rank 0 that a rank passes on. It counts apart from tensors."""
GATHER, SWAP = "allgather_", "alltoall_base_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A call of torch.distributed by one rank: `operation` of torch.ops.c10d, with the tensor that it sends.

    `peer` is the other rank of a send or a receive, None for a collective of all ranks of `group`.
    """

    operation: str
    shape: tuple[int, ...]
    dtype: str
    group: str
    size: int
    nbytes: int
    peer: int | None = None

    @property
    def sent(self) -> int:
        """The bytes that the rank sends. A gather sends its tensor to all others, a swap each part to its owner."""
        if self.operation == GATHER:
            return (self.size - 1) * self.nbytes
        if self.operation == SWAP:
            return self.nbytes * (self.size - 1) // self.size
        return self.nbytes if self.operation == SEND else 0

    @property
    def agreement(self) -> tuple[str, tuple[int, ...], str, str]:
        """What all ranks of a collective must call equally, and sender and receiver of a message."""
        operation = SEND if self.peer is not None else self.operation
        return operation, self.shape, self.dtype, self.group

    def __str__(self) -> str:
        peer = "" if self.peer is None else f", rank {self.peer}"
        return f"{self.operation} of {self.dtype}{list(self.shape)}{peer}"


def sent_bytes(exchanges: Sequence[Exchange]) -> Counter[str]:
    """The bytes that a rank sends, by operation."""
    counts: Counter[str] = Counter()
    for each in exchanges:
        is_message = each.operation == SEND and each.dtype == "uint8"
        counts[MESSAGE if is_message else each.operation] += each.sent
    return counts


def replay(traces: Sequence[Sequence[Exchange]]) -> None:
    """Run the exchanges of all ranks against each other. `WorkerLost` names the first rank that would wait for ever.

    A send is buffered; a receive waits for a message of its sender; a collective waits until all ranks call it with
    equal operation, shape, dtype and group.
    """
    ranks = range(len(traces))
    done = [0] * len(traces)
    messages: dict[tuple[int, int], deque[Exchange]] = {}
    while any(done[rank] < len(traces[rank]) for rank in ranks):
        advanced = False
        for rank in ranks:
            while done[rank] < len(traces[rank]) and _passes(traces[rank][done[rank]], rank, messages):
                done[rank] += 1
                advanced = True
        fronts = [trace[i] if i < len(trace) else None for trace, i in zip(traces, done)]
        if all(x is not None and x.peer is None for x in fronts) and len({x.agreement for x in fronts if x}) == 1:
            done = [i + 1 for i in done]
        elif not advanced:
            raise _hang(fronts, done)
    if left := {pair: queue for pair, queue in messages.items() if queue}:
        (source, target), queue = next(iter(left.items()))
        raise WorkerLost(f"rank {target} never receives the {queue[0]} from rank {source}")


def _passes(exchange: Exchange, rank: int, messages: dict[tuple[int, int], "deque[Exchange]"]) -> bool:
    """Whether a rank passes a send or a receive. `WorkerLost` if a message is not the one that it waits for."""
    if exchange.peer is None:
        return False
    if exchange.operation == SEND:
        messages.setdefault((rank, exchange.peer), deque()).append(exchange)
        return True
    queue = messages.get((exchange.peer, rank))
    if not queue:
        return False
    message = queue.popleft()
    if message.agreement != exchange.agreement:
        raise WorkerLost(
            f"rank {rank} would receive another tensor than rank {exchange.peer} sends",
            evidence=f"it waits for {exchange}, and gets {message}",
            fix="let all ranks take the same exchanges in the same order",
        )
    return True


def _hang(fronts: Sequence[Exchange | None], done: Sequence[int]) -> WorkerLost:
    """The error of ranks that wait for each other: one rank of each kind of exchange that some ranks wait for."""
    waits: dict[object, int] = {}
    for rank, exchange in enumerate(fronts):
        waits.setdefault(None if exchange is None else (exchange.agreement, exchange.peer is None), rank)
    lines = [
        f"rank {rank}, after {done[rank]} exchanges: {fronts[rank] or 'has ended'}" for rank in list(waits.values())[:4]
    ]
    return WorkerLost(
        "the ranks would wait for each other without end",
        evidence="\n".join(lines),
        fix="let all ranks take the same exchanges in the same order",
    )
