"""The pulse of each rank: a number in the store that the rank counts up while it lives, with its place in the run.

A rank that waits for others looks at their pulses. A rank whose pulse does not change is stopped or lost. If all go on,
the ranks that have entered the fewest exchanges are those for which the others wait.
"""

import json
import math
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from threading import Event, Thread
from types import TracebackType

import torch.distributed as dist

from groupwise.core import WorkerLost, first_items

Store = dist.Store  # pyright: ignore[reportPrivateImportUsage]
PULSE = "pulse"
"""The begin of the keys with the pulse of each rank."""
BEAT = 1.0
"""Seconds between two beats of a pulse."""
BEATS = 16
"""The fewest beats within the longest wait of a rank: a short one makes them faster."""
STILL = 5
"""Beats of time without a new pulse after which a rank gives no sign of life.

A thread counts, so a rank that computes has a pulse. Only code that holds Python's lock that long has none.
"""
LEAST_STILL = 2.0
"""The fewest seconds without a new pulse after which a rank gives no sign of life, however fast its beats are."""
STORE = "the store of the ranks (of rank 0 or its torchrun)"
"""What the ranks wait for if the store does not answer: rank 0 may live where torchrun has the store."""
POLL = 0.01
"""Seconds between two looks for an answer of the thread."""


class SilentRanks(WorkerLost):
    """Other ranks give no sign of life: they are stopped, or their host or the network to it is lost."""


def pulse_key(rank: int) -> str:
    """The key of the store with a rank's pulse."""
    return f"{PULSE}/{rank}"


@dataclass(frozen=True, slots=True)
class Pulse:
    """One beat of a rank: its number, the number and name of the last exchange that the rank has entered, and its host.

    All ranks enter the same exchanges in the same order. A rank that ends in order, or because another one was lost,
    has `left`.

    >>> Pulse.read(Pulse(7, 31, "a message", "gpu-1").text().encode())
    Pulse(beat=7, entered=31, exchange='a message', host='gpu-1', left=False)
    """

    beat: int
    entered: int
    exchange: str
    host: str
    left: bool = False

    def text(self) -> str:
        """The value of the rank's key."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: bytes) -> "Pulse":
        """The pulse in the value of a key."""
        return cls(**json.loads(text))


class PulseWatch:
    """The pulses of some ranks, and when each was last new to this process, in seconds of `time.monotonic`."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.pulses: dict[int, Pulse] = {}
        self._texts: dict[int, bytes] = dict.fromkeys(ranks, b"")
        self._looked = time.monotonic()
        self._new = dict.fromkeys(ranks, self._looked)

    def look(self, store: Store) -> None:
        """Read the pulses. Until all are there, an answer of the store is a sign of life."""
        keys = [pulse_key(rank) for rank in self._texts]
        values = store.multi_get(keys) if store.check(keys) else [b""] * len(keys)
        now = time.monotonic()
        for rank, text in zip(self._texts, values, strict=True):
            if not text or text != self._texts[rank]:
                self._texts[rank], self._new[rank] = text, now
        self.pulses = {rank: Pulse.read(text) for rank, text in self._texts.items() if text}
        self._looked = now  # last: another thread may ask meanwhile, and the look before may be long ago

    def still_seconds(self, rank: int) -> float:
        """The seconds before the last look in which a rank had no new pulse."""
        return self._looked - self._new[rank]

    def silent_seconds(self, rank: int) -> float:
        """The seconds up to now without a new pulse of a rank, or without an answer of the store."""
        return time.monotonic() - self._new[rank]


@dataclass(frozen=True, slots=True)
class RankWait:
    """A wait for other ranks, none of which is named while all take part: what they should send or receive.

    `start_seconds` is its begin in seconds of `time.monotonic`. `silent` if the ranks give no sign of life, or without
    ranks, their store.
    """

    awaited_ranks: tuple[int, ...]
    awaited_data: str
    start_seconds: float = field(default_factory=time.monotonic)
    silent: bool = False

    @property
    def seconds(self) -> float:
        """The seconds of this wait so far."""
        return time.monotonic() - self.start_seconds

    @property
    def names(self) -> str:
        """The names of the awaited ranks.

        >>> RankWait((1,), "").names, RankWait((1, 3), "").names, RankWait((), "").names
        ('rank 1', 'ranks 1, 3', 'another rank')
        >>> RankWait((), "", silent=True).names
        'the store of the ranks (of rank 0 or its torchrun)'
        """
        if not self.awaited_ranks:
            return STORE if self.silent else "another rank"
        return f"rank{'s' * (len(self.awaited_ranks) > 1)} {first_items(self.awaited_ranks)}"


class RankPulse:
    """The pulse of this rank as a context: a thread counts it up, and looks at the others while this rank waits.

    `longest` is the longest wait of a rank for another, in seconds. `waiting` is the present wait.
    """

    def __init__(self, store: Store, rank: int, size: int, longest: float) -> None:
        self.rank, self.size = rank, size
        self.waiting: RankWait | None = None
        self.others = PulseWatch([other for other in range(size) if other != rank])
        self._seconds = min(BEAT, longest / BEATS)
        self._still = max(STILL * self._seconds, LEAST_STILL)
        self._entered, self._exchange, self._host = 0, "the start", socket.gethostname()
        self._wake, self._end, self._left = Event(), Event(), False
        self._last_beat, self._store_closed = math.inf, False
        # The thread alone holds the store: it is closed after the context, and so is its port if this process hosts it.
        self._thread = Thread(target=self._count, args=(store,), daemon=True)

    def __enter__(self) -> "RankPulse":
        self._last_beat = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left |= error is None or isinstance(error, WorkerLost)
        self._end.set()
        self._wake.set()
        self._thread.join(BEAT)  # it does not end if the host of the store has vanished

    def enter(self, exchange: str) -> None:
        """Count an exchange of all ranks that this rank enters."""
        self._entered, self._exchange = self._entered + 1, exchange

    def wait_named(self) -> RankWait | None:
        """The present wait, with the ranks for which it waits as far as the pulses show them."""
        if not (wait := self.waiting):
            return None
        if self.store_silent():
            return replace(wait, awaited_ranks=(), silent=True)
        if silent := self.silent():
            return replace(wait, awaited_ranks=tuple(silent), silent=True)
        return replace(wait, awaited_ranks=tuple(self.late()) or wait.awaited_ranks)

    def silent(self) -> list[int]:
        """The other ranks that gave no sign of life when this rank last looked: it looks while it waits."""
        return [
            rank
            for rank in self.others.pulses
            if not self._has_left(rank) and self.others.still_seconds(rank) >= self._still
        ]

    def store_silent(self) -> bool:
        """Whether the store does not answer, and rank 0 has not ended."""
        silent = self._store_closed or time.monotonic() - self._last_beat > self._still
        return silent and not self._has_left(0)

    def late(self) -> list[int]:
        """The other ranks that have yet to enter the exchange of this rank, and have entered the fewest."""
        entered = {rank: pulse.entered for rank, pulse in self.others.pulses.items() if not pulse.left}
        fewest = min(entered.values(), default=self._entered)
        return [rank for rank, count in entered.items() if count == fewest < self._entered]

    def any_left(self) -> bool:
        """Whether another rank has ended because one was lost."""
        return any(pulse.left for pulse in self.others.pulses.values())

    def _has_left(self, rank: int) -> bool:
        return rank in self.others.pulses and self.others.pulses[rank].left

    def describe(self, rank: int) -> str:
        """A line about another rank: its host, its last pulse and its last exchange."""
        if not (pulse := self.others.pulses.get(rank)):
            return f"rank {rank} has shown no pulse"
        seconds = self.others.still_seconds(rank)
        life = f"gave no sign of life for {seconds:.0f} s" if rank in self.silent() else "lives"
        return f"rank {rank} is on host {pulse.host}, and {life}; its last exchange was {pulse.exchange}"

    def leave(self) -> None:
        """Tell the others that this rank ends because one is lost, and look at their pulses.

        It takes some beats if the store does not answer.
        """
        self._left = True
        self._wake.set()
        asked = time.monotonic()  # a beat that starts later sees the wake, or the one before it has
        while self._last_beat < asked > time.monotonic() - self._still and not self._store_closed:
            time.sleep(POLL)

    def _count(self, store: Store) -> None:
        """Beat until the end. The store's calls are in this thread: they block without end if its host has vanished."""
        beat = 0
        try:
            # A wait for a key holds back all other calls over the same connection.
            store = store.clone()  # pyright: ignore[reportAttributeAccessIssue]
            while not self._end.is_set():
                start, beat = time.monotonic(), beat + 1
                if woken := self._wake.is_set():
                    self._wake.clear()
                store.set(pulse_key(self.rank), self._pulse(beat).text())
                if woken or len(self.others.pulses) < self.size - 1 or self._waits():
                    self.others.look(store)
                self._last_beat = start
                self._wake.wait(self._seconds)
            store.set(pulse_key(self.rank), self._pulse(beat + 1).text())
        except (dist.DistError, RuntimeError):
            self._store_closed = True

    def _pulse(self, beat: int) -> Pulse:
        return Pulse(beat, self._entered, self._exchange, self._host, self._left)

    def _waits(self) -> bool:
        """Whether this rank waits, and not only for the moment that an exchange takes."""
        wait = self.waiting
        return wait is not None and wait.seconds > self._seconds
