"""Waits for other ranks: a signal ends the wait, whichever thread of the process gets it, and rank 0 reports it."""

import ast
import inspect
import re
import signal
import threading
from collections.abc import Iterator
from queue import Queue
from threading import Event, get_ident

import pytest
import torch.distributed as dist

from groupwise.cluster.rank_work_thread import interruptible, waits_reported
from groupwise.learner import distributed, fsdp
from groupwise.learner.distributed import ReplicatedRanks
from groupwise.learner.rank_pulse import RankPulse, RankWait
from tests.processes import PATIENCE

WAITS = {"send", "recv", "all_gather", "all_reduce", "all_to_all_single", "batch_isend_irecv", "barrier", "broadcast"}
"""The functions of torch.distributed that wait for another rank."""


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    """It does not wake the main thread, which runs the handler."""
    release, ended = Event(), Event()

    def stop(number: int, frame: object) -> None:
        raise InterruptedError

    def work() -> None:
        release.wait(0.3)  # the main thread waits by now
        signal.pthread_kill(get_ident(), signal.SIGUSR1)
        release.wait(10)
        ended.set()

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(InterruptedError):
            interruptible(work)
        assert not ended.is_set()
    finally:
        release.set()
        signal.signal(signal.SIGUSR1, before)


def test_a_long_wait_for_a_rank_is_reported_whichever_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.cluster.rank_work_thread.REPORT", 0.02)
    lines: Queue[str] = Queue()
    ranks = object.__new__(ReplicatedRanks)  # without connections
    ranks.rank, ranks.size, ranks.lanes, ranks.pulse = 0, 2, 2, RankPulse(dist.HashStore(), 0, 2, 9.0)
    before = {*threading.enumerate()}
    with waits_reported(ranks, lines.put):
        ranks.pulse.waiting = RankWait((1,), "weights")
        assert re.fullmatch(r"waiting for rank 1 for \d+ s: weights", lines.get(timeout=PATIENCE))
        lines.get(timeout=PATIENCE)  # again, after twice as long
        ranks.pulse.waiting = RankWait((), "a message")
        while not (line := lines.get(timeout=PATIENCE)).startswith("waiting for another rank "):
            assert "rank 1" in line
    assert not {*threading.enumerate()} - before


def waits(tree: ast.AST, within: bool = False) -> Iterator[tuple[str, bool]]:
    """Each wait for a rank in a syntax tree, and whether it is within `errors`, which `Ranks.waiting` shows."""
    for node in ast.iter_child_nodes(tree):
        inside = within
        match node:
            case ast.With(items=items):
                inside = within or any(re.search(r"\.(errors|joint)\(", ast.unparse(item)) for item in items)
            case ast.Call(func=ast.Attribute(value=ast.Name("dist"), attr=name)) if name in WAITS:
                yield ast.unparse(node), within
            case ast.Call(func=ast.Attribute(value=ast.Name("work"), attr="wait")):
                yield ast.unparse(node), within
        yield from waits(node, inside)


def test_every_wait_for_a_rank_is_one_that_is_reported() -> None:
    found = [wait for module in (distributed, fsdp) for wait in waits(ast.parse(inspect.getsource(module)))]
    assert len(found) > 6 and not [call for call, reported in found if not reported]
