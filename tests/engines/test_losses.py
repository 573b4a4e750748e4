"""What a user sees of lost engines: the terminal, timings.jsonl, and no directory of a run that cannot start."""

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.data import Generation, GenerationRequest
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote.replica import Replica
from groupwise.runs.run_layout import RunLayout
from tests.engines.lines import server
from tests.rollout.fakes import FakeEngine

SMALL = ["--iterations", "3", "--prompts", "4", "--method.group_size", "4", "--method.minibatches", "1",
         "--evaluate.problems", "1", "--sampling.max_tokens", "12"]  # fmt: skip
SECONDS = 60.0


def lines_of(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_engine_is_in_the_terminal_and_in_the_timings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """metrics.jsonl is that of a run without a kill."""
    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    sample, count = Replica.sample, [0]

    async def sampled(self: Replica, request: GenerationRequest) -> Generation:
        count[0] += 1
        if count[0] == 25:
            os.kill(self.process.pid, signal.SIGKILL)
        return await sample(self, request)

    monkeypatch.setattr(Replica, "sample", sampled)
    options = [*SMALL, "--out", str(tmp_path)]
    assert main(["train", *options, "--engine", '{ kind = "Served", replicas = 2 }', "--name", "killed"]) == 0
    printed = capsys.readouterr().err
    (run,) = tmp_path.glob("killed-*")
    losses = [line for line in printed.splitlines() if " is lost: " in line]
    ended = "its process was ended by SIGKILL|its connection closed"  # on a busy machine, the process ends later
    assert len(losses) == 1 and re.fullmatch(rf"replica \d is lost: ({ended}); started again \(1 of 3\)", losses[0])
    assert sorted(path.name for path in RunLayout(run).logs.iterdir()) == ["engine-0.log", "engine-1.log"]
    timings = lines_of(run / "timings.jsonl")
    assert sum(line["engine/restarts"] for line in timings) == 1
    assert all(0 <= line[f"engine/{number}/rows"] <= 256 for line in timings for number in range(2))
    assert any(line["engine/0/rows"] and line["engine/1/rows"] for line in timings) and "  rows " in printed
    assert main(["train", *options, "--name", "native"]) == 0
    (native,) = tmp_path.glob("native-*")
    assert (run / "metrics.jsonl").read_bytes() == (native / "metrics.jsonl").read_bytes()


@pytest.fixture
def other_engine(tmp_path: Path) -> Iterator[Path]:
    """The socket of an engine of another model."""
    path, ready, end = tmp_path / "other.sock", threading.Event(), threading.Event()

    async def serve() -> None:
        task = asyncio.create_task(server(FakeEngine(lambda _: (7,))).listen(path, ready.set))
        await asyncio.to_thread(end.wait, SECONDS)
        task.cancel()
        await asyncio.wait([task])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(SECONDS)
    yield path
    end.set()
    thread.join(SECONDS)


def test_a_run_whose_engines_cannot_be_used_leaves_no_directory(
    tmp_path: Path, other_engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*addresses: Path) -> int:
        named = ", ".join(f'"{address}"' for address in addresses)
        engine = f'{{ kind = "Served", replicas = 0, addresses = [{named}] }}'
        return main(["train", *SMALL, "--engine", engine, "--out", str(tmp_path / "runs")])

    assert train(tmp_path / "gone.sock") == 7
    assert "no engine listens on" in (printed := capsys.readouterr().err) and "started again" not in printed
    assert train(tmp_path / "gone.sock", other_engine) == 2
    assert "is another engine than the run needs" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
