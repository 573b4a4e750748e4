"""A run killed by its own agent, a program: while it waits for an answer, reads a stream, or runs a tool."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.data import Generation, GenerationRequest
from groupwise.engines import Served
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote.replica import Replica
from groupwise.runs.run_layout import RunLayout
from tests.faults.small_runs import forked

pytestmark = pytest.mark.kill

AGENT = """
import json, os, signal, sys, threading, time, urllib.request

def ask(messages, **fields):
    body = {"model": "policy", "messages": messages, **fields}
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    return urllib.request.urlopen(urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), key))

def kill():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)

with open(sys.argv[1], "a") as runs:
    runs.write("x")
moment = os.environ.get("MOMENT") if os.path.getsize(sys.argv[1]) == int(os.environ.get("AT", "0")) else ""
messages = [{"role": "user", "content": json.loads(os.environ["GROUPWISE_ROW"])["prompt"]}]
if moment == "waits":
    threading.Thread(target=ask, args=[messages]).start()
    time.sleep(0.02)
    kill()
first = json.load(ask(messages))["choices"][0]["message"]
if moment == "tool":
    kill()
again = [{"role": "user", "content": first["content"][:4] + "+1="}]
reply = ask(again, stream=True)
if moment == "stream":
    reply.read(20)
    kill()
print(json.dumps({"reward": len(reply.read()) % 7}))
"""
SMALL = {
    "iterations": 3, "prompts": 4, "evaluate.problems": 2, "evaluate.every": 0, "save.every": 1,
    "sampling.max_tokens": 24, "method.group_size": 2, "agent.processes": 3,
}  # fmt: skip


def train(folder: Path, moment: str = "", at: int = 0) -> Path:
    """A run of the agent in a fork, killed at this moment of the `at`-th start of its program, and then resumed."""
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    command = ["--agent-command", shlex.join([sys.executable, str(folder / "agent.py"), str(folder / "starts")])]
    words = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]

    def start() -> int:
        os.environ |= {"MOMENT": moment, "AT": str(at)}
        return main(["train", *command, "--out", str(folder / "runs"), *words])

    log = folder / "log"
    assert forked(start, log) == (-signal.SIGKILL if moment else 0), log.read_text()
    (run,) = (folder / "runs").iterdir()
    if moment:
        assert forked(lambda: main(["resume", str(run), *command]), log) == 0, log.read_text()
    return run


def results(run: Path) -> tuple[bytes, list[str], list[bytes]]:
    layout = RunLayout(run)
    samples = [file.read_bytes() for file in sorted(layout.samples.iterdir())]
    return (layout.model / "model.safetensors").read_bytes(), layout.metrics.read_text().splitlines(), samples


def test_a_run_that_its_agent_kills_ends_as_if_undisturbed(tmp_path: Path) -> None:
    whole = results(train(tmp_path / "whole"))
    starts = (tmp_path / "whole" / "starts").stat().st_size
    assert len({json.loads(line).get("reward") for line in whole[1]}) > 1, "the rewards differ"
    for moment, at in (("waits", 13), ("tool", 18), ("stream", 21)):
        run = train(tmp_path / moment, moment, at)
        assert results(run) == whole, moment
        repeated = (tmp_path / moment / "starts").stat().st_size - starts
        assert 1 <= repeated <= 8, "only runs of the agent that had not ended are started again"


def test_a_killed_engine_in_another_process_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is a program, two engines in child processes, and one of them is killed while it answers."""
    (tmp_path / "agent.py").write_text(AGENT)
    killed: list[int] = []
    counts, sample = [0], Replica.sample

    async def sampled(self: Replica, request: GenerationRequest) -> Generation:
        counts[0] += 1
        if counts[0] == 12:
            killed.append(self.process.pid)
            os.kill(self.process.pid, signal.SIGKILL)
        return await sample(self, request)

    def trained(name: str, engine: Any) -> tuple[bytes, list[str], list[bytes]]:
        command = shlex.join([sys.executable, str(tmp_path / "agent.py"), str(tmp_path / "starts")])
        permissions = gw.Permissions(agent_command=command)
        run = gw.train(out=tmp_path / name, agent=gw.Agent(), engine=engine, permissions=permissions, **SMALL)
        return results(Path(run.directory))

    monkeypatch.setattr(engine_slots, "PAUSE", 0.0)
    monkeypatch.setattr(Replica, "sample", sampled)
    assert trained("served", Served(replicas=2)) == trained("native", gw.Native()) and len(killed) == 1
