"""The pulse of rank 0: another rank waits as long as it beats, and not for a store that is silent."""

import socket
from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from torch.distributed import DistNetworkError, DistStoreError

from groupwise.core import WorkerLost
from groupwise.learner import ReplicatedRanks, distributed, rank_pulse
from groupwise.learner.rank_pulse import STORE, Pulse, PulseWatch, RankPulse, SilentRanks, Store, pulse_key
from groupwise.learner.rank_store import CALL, awaited, join_store, wait_for_call

SECONDS = 60.0


class PretendedStore(Store):
    """A store whose waits take a second of a pretended clock. After `waits` of them, it has the awaited key."""

    def __init__(self, waits: int, *, beats: bool) -> None:
        super().__init__()
        self.waits, self.beats, self.clock = waits, beats, 0.0

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self.clock += 1
        if self.clock <= self.waits:
            raise DistStoreError("wait timeout")

    def check(self, keys: list[str]) -> bool:
        return keys == [pulse_key(0)]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [Pulse(int(self.clock) if self.beats else 0, 0, "the start", "here").text().encode()]

    def get(self, key: str) -> bytes:
        return b"value"

    def clone(self) -> "PretendedStore":
        return self


def test_a_rank_waits_as_long_as_rank_0_has_a_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    store = PretendedStore(100, beats=True)
    monkeypatch.setattr(rank_pulse.time, "monotonic", lambda: store.clock)
    assert awaited(store, "message/7", 8.0) == b"value" and store.clock == 101


def test_a_pulse_that_stands_still_is_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a pretended clock: each look takes longer than half of the patience."""
    ended = Event()

    class Still(PretendedStore):
        def wait(self, keys: list[str], timeout: Any = None) -> None:
            if ended.wait(0.01):
                raise DistNetworkError("closed")
            raise DistStoreError("wait timeout")

        def multi_get(self, keys: list[str]) -> list[bytes]:
            self.clock += 0.06
            return super().multi_get(keys)

    store = Still(0, beats=False)
    monkeypatch.setattr(rank_pulse.time, "monotonic", lambda: store.clock)
    with pytest.raises(SilentRanks, match=r"^rank 0 gave no sign of life for 0\.1 s"):
        awaited(store, CALL, 0.1)
    ended.set()


def test_a_look_after_a_long_time_makes_no_rank_silent_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may ask at any moment, such as when the look finds the first new pulse."""
    store, watch = PretendedStore(0, beats=True), PulseWatch([0])
    monkeypatch.setattr(rank_pulse.time, "monotonic", lambda: store.clock)
    found: list[float] = []

    class Asked(dict[int, float]):
        def __setitem__(self, rank: int, seconds: float) -> None:
            found.append(watch.still_seconds(rank))
            super().__setitem__(rank, seconds)

    watch._new, watch._looked = Asked({0: 0.0}), 0.0
    store.clock = 1000.0
    watch.look(store)
    assert found == [0.0] and watch.still_seconds(0) == 0 and watch.pulses[0].beat == 1000


@pytest.fixture
def vanished() -> Iterator[PretendedStore]:
    """A store whose host has vanished: no call returns."""
    end = Event()

    class Vanished(PretendedStore):
        def wait(self, keys: list[str], timeout: Any = None) -> None:
            assert end.wait(SECONDS)
            raise DistNetworkError("closed")

        def set(self, key: str, value: Any) -> None:
            self.wait([key])

    yield Vanished(0, beats=False)
    end.set()


def test_a_store_that_does_not_answer_ends_the_wait(vanished: PretendedStore) -> None:
    with pytest.raises(SilentRanks) as caught:
        wait_for_call(vanished, 0.1)
    assert caught.value.what == f"{STORE} gave no sign of life for 0.1 s" and "groupwise resume" in caught.value.fix


def test_ranks_that_meet_name_a_host_that_vanishes(vanished: PretendedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first contact with rank 0 and the connections of all ranks."""
    monkeypatch.setattr(distributed, "START", timedelta(seconds=0.1))
    monkeypatch.setattr(rank_pulse, "LEAST_STILL", 0.1)
    with RankPulse(vanished, 1, 2, 0.1) as pulse, pytest.raises(SilentRanks) as caught:
        ReplicatedRanks(vanished, pulse, 2, deadline=0.1)
    assert caught.value.what == f"rank 1 waited for {STORE}, which did not answer within 0.2 s: the start"


def test_rank_0_sends_to_a_store_that_does_not_answer(
    vanished: PretendedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a stopped torchrun: rank 0 does not name itself."""
    monkeypatch.setattr(rank_pulse, "LEAST_STILL", 0.1)
    ranks = object.__new__(ReplicatedRanks)  # without connections
    ranks.rank, ranks.size, ranks.deadline, ranks._store, ranks._messages = 0, 2, 0.2, vanished, 0
    with RankPulse(vanished, 0, 2, 0.1) as ranks.pulse, pytest.raises(SilentRanks) as caught:
        ranks.send(b"work")
    assert caught.value.what == f"rank 0 waited for {STORE}, which did not answer within 0.2 s: a message"


def test_a_host_that_accepts_connections_and_is_silent_is_no_rank_0() -> None:
    """As a stopped process, or a host that is lost once the connection is open."""
    message = r"rank 0 is not at 127\.0\.0\.1:\d+, after 0\.2 s"
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(WorkerLost, match=message):
        join_store(silent.getsockname()[1], 2, deadline=0.2)
