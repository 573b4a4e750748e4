"""The pulses of ranks: a rank that waits names the ranks that give no sign of life, or have yet to arrive."""

import math
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
import torch
import torch.distributed as dist

from groupwise.core import WorkerLost
from groupwise.learner import ReplicatedRanks, rank_pulse
from groupwise.learner.distributed import ConnectionClosed
from groupwise.learner.rank_pulse import STORE, Pulse, RankPulse, SilentRanks, Store, pulse_key
from groupwise.learner.rank_store import CALL, STARTS, host_store, join_store, wait_for_call
from tests.docs.warm_shell import environment
from tests.learner.pulse_jobs import LAYER, SHARDS, Case
from tests.processes import PATIENCE, wait_until

LATE, CLOSED = "Timed out waiting 9000ms", "Connection closed by peer"
NEVER = 1e6
"""The longest wait of a rank that beats once a second, and has given up by the end of the test."""


class Ranks(ReplicatedRanks):
    """Rank 0 of some, without connections, in its fifth exchange. `pulses` are those of the others."""

    def __init__(self, store: Store, pulse: RankPulse, pulses: dict[int, Pulse]) -> None:
        self.rank, self.size, self.deadline, self.pulse, self.store = pulse.rank, pulse.size, 9.0, pulse, store
        for other, beat in pulses.items():
            store.set(pulse_key(other), beat.text())
        for _ in range(5):
            pulse.enter("a sum")

    def lost(self, message: str) -> WorkerLost:
        """The error of a wait for all other ranks."""
        with pytest.raises(WorkerLost) as caught, self.errors((), "a sum"):
            raise RuntimeError(message)
        return caught.value


def at(entered: int, *, left: bool = False) -> Pulse:
    return Pulse(1, entered, "a message", "gpu-1", left)


@contextmanager
def rank_0(*pulses: Pulse) -> Iterator[Ranks]:
    """Rank 0, and the pulses of the others, which do not go on."""
    store = dist.HashStore()
    with RankPulse(store, 0, 1 + len(pulses), NEVER) as pulse:
        yield Ranks(store, pulse, dict(enumerate(pulses, 1)))


def test_a_wait_names_the_ranks_that_have_entered_the_fewest_exchanges() -> None:
    with rank_0(at(5), at(3), at(4), at(3)) as ranks:
        error = ranks.lost(LATE)
    assert error.what == "rank 0 waited for ranks 2, 4, which did not answer within 9 s: a sum"
    assert error.evidence.splitlines()[1:] == [
        f"rank {rank} is on host gpu-1, and lives; its last exchange was a message" for rank in (2, 4)
    ]


def test_a_late_rank_is_not_one_that_gave_up() -> None:
    with rank_0(at(2, left=True), at(4)) as ranks:
        assert ranks.lost(LATE).what.startswith("rank 0 waited for rank 2, which did not answer within 9 s")


def test_a_wait_in_which_all_ranks_have_arrived_names_none() -> None:
    with rank_0(at(5), at(6)) as ranks:
        assert ranks.lost(LATE).what.startswith("rank 0 waited for another rank, which did not answer within 9 s")


def test_a_closed_connection_of_a_rank_that_gave_up_is_that_of_the_rank_for_which_it_waited() -> None:
    with rank_0(at(5, left=True), at(3)) as ranks:
        error = ranks.lost(CLOSED)
    assert error.what == "rank 0 waited for rank 2, which has yet to arrive: a sum"
    with rank_0(at(5), at(3)) as ranks:  # any rank may have died
        error = ranks.lost(CLOSED)
    assert isinstance(error, ConnectionClosed) and "for another rank, which is gone" in error.what


def test_a_rank_that_gave_up_tells_the_others() -> None:
    with rank_0(at(3)) as ranks:
        ranks.lost(LATE)
        assert Pulse.read(ranks.store.get(pulse_key(0))).left


def test_an_exchange_is_counted_when_a_rank_enters_it() -> None:
    with rank_0(at(5)) as ranks:
        with pytest.raises(WorkerLost):  # it has no connections
            ranks.exchange(torch.ones(1), torch.ones(1), 1, "another sum")
        beat = Pulse.read(ranks.store.get(pulse_key(0)))
    assert (beat.entered, beat.exchange) == (6, "another sum")


def test_a_rank_whose_pulse_stands_still_is_named_before_one_that_is_late() -> None:
    """Rank 1 has entered the exchange, and rank 2 has not. Their last new pulses are a day ago and tomorrow."""
    with rank_0(at(5), at(3)) as ranks:
        ranks.pulse.leave()  # it has seen their pulses
        for rank, days in ((1, -1), (2, 1)):
            ranks.pulse.others._new[rank] += days * 86400
        error = ranks.lost(CLOSED)
    assert isinstance(error, SilentRanks)
    assert error.what == "rank 0 waited for rank 1, which gives no sign of life: a sum"


def test_a_pulse_is_counted_up_until_the_end_of_the_context_also_while_the_rank_waits_for_a_key() -> None:
    """A wait for a key holds back the other calls over the same connection to the store."""
    store = host_store(2)
    other = join_store(store.port, 2, deadline=PATIENCE)

    def beat() -> int:
        return Pulse.read(store.get(pulse_key(1))).beat

    with RankPulse(other, 1, 2, 0.1), ThreadPoolExecutor(1) as pool:
        store.wait([pulse_key(1)])
        called = pool.submit(wait_for_call, other, PATIENCE)
        try:
            first = beat()
            wait_until(lambda: beat() > first + 30, "the pulse goes on")
        finally:
            store.set(CALL, STARTS)
        assert called.result(PATIENCE)
    assert Pulse.read(store.get(pulse_key(1))).left


def test_fast_beats_give_a_rank_time_to_live() -> None:
    """Five beats of a tenth of a second are shorter than a rank may need for its next one."""
    with RankPulse(store := dist.HashStore(), 0, 3, 1.6) as pulse:
        Ranks(store, pulse, {1: at(5), 2: at(5)})
        pulse.leave()
        for rank, seconds in ((1, 1.0), (2, 3.0)):
            pulse.others._new[rank] = pulse.others._looked - seconds
        assert pulse.silent() == [2]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_closed_store_is_named_and_no_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not because it does not answer. Torchrun may host it, and rank 0 live."""
    monkeypatch.setattr(rank_pulse, "STILL", math.inf)
    store = host_store(2)
    with RankPulse(join_store(store.port, 2, deadline=PATIENCE), rank, 2, 0.1) as pulse:
        ranks = Ranks(store, pulse, {1 - rank: at(5)})
        store.wait([pulse_key(rank)])
        del store, ranks.store
        wait_until(pulse.store_silent, "the store is closed")
        error = ranks.lost(CLOSED)
    assert error.what == f"rank {rank} waited for {STORE}, which gives no sign of life: a sum"
    assert isinstance(error, SilentRanks)


def test_a_call_just_after_a_beat_is_heard() -> None:
    """The pulse's thread has just timed out in its wait for it."""

    class JustLate(Event):
        def wait(self, timeout: float | None = None) -> bool:
            time.sleep(0.01)
            self.set()
            return False

    with rank_0(at(5)) as ranks:
        ranks.pulse.leave()  # from now on it looks if it is called
        beat = Pulse.read(ranks.store.get(pulse_key(0))).beat
        ranks.store.set(pulse_key(1), at(9).text())
        before, ranks.pulse._wake = ranks.pulse._wake, JustLate()
        before.set()
        wait_until(lambda: Pulse.read(ranks.store.get(pulse_key(0))).beat > beat + 5, "the pulse goes on")
        assert ranks.pulse.others.pulses[1].entered == 9


@contextmanager
def started(case: Case) -> Iterator[list["subprocess.Popen[str]"]]:
    """The processes of the ranks, which are killed at the end."""
    command = ["python", "-m", "tests.learner.pulse_jobs"]
    processes = [
        subprocess.Popen([*command, *case.words(rank)], env=environment(), stderr=subprocess.PIPE, text=True)
        for rank in range(case.size)
    ]
    try:
        yield [*processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


FOUR = pytest.mark.slow


@pytest.mark.parametrize("exchange", [LAYER, SHARDS])
@pytest.mark.parametrize(("size", "victim"), [(2, 1), pytest.param(4, 3, marks=FOUR)])
def test_a_stopped_shard_is_named_by_each_rank_that_waits(
    exchange: str, size: int, victim: int, tmp_path: Path
) -> None:
    store = host_store(size)
    with started(Case(str(tmp_path), exchange, "stops", victim, size, store.port)) as processes:
        del processes[victim]
        errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
        assert [process.returncode for process in processes] == [WorkerLost.code] * (size - 1), errors
    for rank in set(range(size)) - {victim}:
        lines = (tmp_path / f"lines-{rank}.txt").read_text()
        error = lines.partition(f"rank {rank} waited for ")[2]
        assert re.match(rf"rank {victim}, which .*: {exchange}\n", error), lines
        assert re.search(rf"rank {victim} is on host \S+, and gave no sign of life for \d+ s", error), lines
        assert re.search(rf"waiting for rank {victim} for \d+ s, without a sign of life: {exchange}\n", lines), lines


@FOUR
def test_a_shard_that_is_behind_and_lives_is_named_and_not_lost(tmp_path: Path) -> None:
    store = host_store(4)
    file = tmp_path / "lines-0.txt"
    with started(Case(str(tmp_path), LAYER, "stays", 3, 4, store.port)) as processes:
        line = re.compile(rf"^waiting for rank 3 for \d+ s: {LAYER}$", re.M)
        wait_until(lambda: file.exists() and line.search(file.read_text()), "rank 0 names rank 3")
        (tmp_path / "go").touch()
        errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, errors
