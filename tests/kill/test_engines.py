"""Every engine of a run killed or stopped at every kind of moment: the run ends as if undisturbed."""

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.engines import Fleet, RemoteEngine, Served, WeightsFile
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote.replica import Replica
from groupwise.learner import Learner
from groupwise.training.build_run import RunObjects
from tests.faults.small_runs import left_without_recipe
from tests.processes import hasten, wait_until_gone

pytestmark = pytest.mark.kill

SMALL = {
    "iterations": 3, "prompts": 4, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 4, "evaluate.every": 2, "save.every": 1,
}  # fmt: skip
TARGETS = {"engine 0": (0,), "engine 1": (1,), "all": (0, 1)}
MOMENTS = ("idle", "sampling", "scoring", "loading", "evaluating")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
LAGS = (0, 1)
SHARED = Path("/dev/shm")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """By lag, the files of the undisturbed run, with the engine in the trainer's process."""
    out = tmp_path_factory.mktemp("native")
    return {
        max_staleness: left_without_recipe(
            gw.train(out=out / str(max_staleness), **SMALL, **{"cluster.max_staleness": max_staleness}).directory
        )
        for max_staleness in LAGS
    }


@pytest.fixture
def exchange() -> Iterator[Path]:
    """A directory for the weights in shared memory, where there is one. It must be empty after the test."""
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as path:
        others = set(Path(path).parent.iterdir())
        yield Path(path)
        gc.collect()
        assert not [*Path(path).iterdir()]
        ours = (p for p in set(Path(path).parent.iterdir()) - others if p.name.startswith("groupwise"))
        assert not [*ours]


class Disturbance:
    """Sends a signal to the target engines once, at a moment of a kind. All engines have weights before."""

    def __init__(self, targets: tuple[int, ...], number: int) -> None:
        self.targets, self.number = targets, number
        self.replicas: dict[int, Replica] = {}
        self.pids: set[int] = set()
        self.sent: list[int] = []
        self.evaluating = False

    def started(self, replica: Replica) -> None:
        found = re.match(r"replica (\d+)", replica.name)
        assert found
        self.replicas[int(found[1])] = replica
        self.pids.add(replica.process.pid)

    def send(self) -> None:
        if not self.sent:
            for target in self.targets:
                self.sent.append(target)
                os.kill(self.replicas[target].process.pid, self.number)
                if self.number == signal.SIGSTOP:
                    hasten(self.replicas[target])

    def at_call(self, replica: RemoteEngine, count: int, least: int) -> None:
        """Send it at the call number `least` of the first target."""
        if replica is self.replicas.get(self.targets[0]) and count >= least:
            self.send()


def watch(patch: pytest.MonkeyPatch, disturbance: Disturbance, moment: str) -> None:
    """Call the disturbance at the moment of this name."""
    hello, evaluate, load = Replica.hello, RunObjects.evaluate, Fleet.load
    counts = {"sample": 0, "score": 0}

    async def greeted(self: Replica, seconds: float) -> Any:
        found = await hello(self, seconds)
        disturbance.started(self)
        return found

    async def loaded(self: Fleet, version: int, weights: Any) -> None:
        await load(self, version, weights)
        while version == 0 and any(slot.version < 0 for slot in self._slots):
            await asyncio.sleep(0.01)

    async def evaluated(self: RunObjects, setting: Any, learner: Any) -> dict[str, float]:
        disturbance.evaluating = True
        try:
            return await evaluate(self, setting, learner)
        finally:
            disturbance.evaluating = False

    def counted(name: str, act: Callable[..., Any], when: Callable[[], bool], least: int) -> None:
        async def call(self: Replica, *args: Any, **how: Any) -> Any:
            if when() and self is disturbance.replicas.get(disturbance.targets[0]):
                counts[name] += 1
                disturbance.at_call(self, counts[name], least)
            return await act(self, *args, **how)

        patch.setattr(Replica, name, call)

    patch.setattr(Replica, "hello", greeted)
    patch.setattr(RunObjects, "evaluate", evaluated)
    patch.setattr(Fleet, "load", loaded)
    if moment == "idle":
        step = Learner.step
        patch.setattr(Learner, "step", lambda *args, **how: (disturbance.send(), step(*args, **how))[1])
    elif moment == "loading":
        fetch = Replica.fetch

        async def fetched(self: Replica, file: WeightsFile) -> None:
            disturbance.at_call(self, file.version, 2)
            await fetch(self, file)

        patch.setattr(Replica, "fetch", fetched)
    elif moment == "scoring":
        counted("score", Replica.score, lambda: True, 2)
    elif moment == "sampling":
        counted("sample", Replica.sample, lambda: not disturbance.evaluating, 6)
    else:
        counted("sample", Replica.sample, lambda: disturbance.evaluating, 2)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("max_staleness", LAGS)
def test_a_run_ends_as_if_undisturbed(
    max_staleness: int, target: str, moment: str, number: signal.Signals, native: dict[int, dict[str, Any]],
    exchange: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With a lag of 1, "idle" is a step of the learner, while the other engines sample the next iteration."""
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    disturbance = Disturbance(TARGETS[target], number)
    watch(monkeypatch, disturbance, moment)
    served = Served()
    run = gw.train(
        out=tmp_path,
        engine=served,
        permissions=gw.Permissions(engine_exchange=exchange),
        **SMALL,
        **{"cluster.max_staleness": max_staleness},
    )
    assert disturbance.sent == [*TARGETS[target]]
    wait_until_gone(sorted(disturbance.pids))
    assert left_without_recipe(run.directory) == native[max_staleness]


SERVE = [sys.executable, "-m", "groupwise", "serve", "calculator"]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_an_engine_on_another_host_that_is_started_again_comes_back(
    number: signal.Signals, native: dict[int, dict[str, Any]], exchange: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its key is in a file and its port is the same, so it has the address of before. A stopped one goes on later."""
    (tmp_path / "secret").write_text("s" * 64)
    (tmp_path / "secret").chmod(0o600)
    options = ["--secret-file", str(tmp_path / "secret"), "--key", str(tmp_path / "key.pem")]
    started: list[subprocess.Popen[str]] = []

    def start(address: str) -> str:
        process = subprocess.Popen([*SERVE, "--listen", address, *options], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        return process.stdout.readline().split("served at ")[1].partition(";")[0]

    sample, counts = RemoteEngine.sample, [0]

    elsewhere: list[RemoteEngine] = []

    async def disturbed(self: RemoteEngine, request: Any) -> Any:
        counts[0] += 1
        if not isinstance(self, Replica):
            elsewhere.append(self)
        if counts[0] == 40:
            os.kill(started[0].pid, number)
            if number == signal.SIGKILL:
                start(address.partition("#")[0])
            else:
                hasten(elsewhere[-1])
        if counts[0] == 60 and number == signal.SIGSTOP:
            os.kill(started[0].pid, signal.SIGCONT)
        return await sample(self, request)

    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    monkeypatch.setattr(RemoteEngine, "sample", disturbed)
    address = start("127.0.0.1:0")
    served = Served(replicas=1, addresses=(address,), max_restarts=20)
    permissions = gw.Permissions(engine_secret=tmp_path / "secret", engine_exchange=exchange)
    try:
        run = gw.train(out=tmp_path / "runs", engine=served, permissions=permissions, **SMALL)
        assert left_without_recipe(run.directory) == native[0] and counts[0] > 60
    finally:
        for process in started:
            process.kill()
            process.wait()
