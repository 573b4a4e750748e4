"""A run of three phases, from demonstrations to pairs to a verified reward, killed within and between the phases."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.lifecycle import run_phases
from groupwise.tasks import demonstrations
from tests.faults.small_runs import forked

pytestmark = pytest.mark.kill

THREE = """
method = "sft"
prompts = 4
evaluate.problems = 4
sampling.max_tokens = 24
save.every = 1

[[phase]]
name = "imitate"
task = "demonstrations.jsonl"
epochs = 1

[[phase]]
name = "prefer"
task = "pairs.jsonl"
method = { base = "dpo" }
iterations = 2

[[phase]]
name = "verify"
task = "calculator"
method = { base = "grpo", group_size = 4 }
iterations = 2
"""
DEATHS = [("1-imitate", 2), ("1-imitate", "finished"), ("2-prefer", 0), ("2-prefer", 2), ("2-prefer", "finished"),
          ("3-verify", 1)]  # fmt: skip
"""A phase, and the iteration after whose line of metrics the run dies; or `finished`, before the next phase begins."""


def killed(death: tuple[str, int | str]) -> None:
    """Train until the death. Call it in a fork."""
    phase, moment = death

    def die(run: gw.Run, line: dict[str, Any]) -> None:
        if (run.directory.name, line["iteration"]) == death:
            os.kill(os.getpid(), signal.SIGKILL)

    def report(runs: Any, *path: Any) -> None:
        if runs[-1].name == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    if moment == "finished":
        run_phases.write_report = report  # type: ignore[assignment]
    gw.train("three.toml", name="killed", on_iteration=die)


def left(run: Path) -> dict[str, bytes]:
    """The models, metrics and samples of all phases."""
    patterns = ("model/*.safetensors", "metrics.jsonl", "samples/*")
    files = (path for phase in run.glob("?-*") for pattern in patterns for path in phase.glob(pattern))
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_three_phases_killed_anywhere_end_with_the_same_bytes(home: Path) -> None:
    rows = [(p, a) for p, a in demonstrations(0, 12, 0.35)]
    Path("demonstrations.jsonl").write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows))
    pairs = ({"prompt": p, "chosen": a, "rejected": f"#{len(a)}"} for p, a in rows)
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    Path("three.toml").write_text(THREE)
    log = home / "log"
    assert forked(lambda: gw.train("three.toml", name="whole") and 0, log) == 0, log.read_text()
    (whole,) = Path("runs").glob("whole-*")
    expected = left(whole)
    assert {name.partition("/")[0] for name in expected} == {"1-imitate", "2-prefer", "3-verify"}
    for death in DEATHS:
        assert forked(lambda death=death: killed(death), log) == -signal.SIGKILL, (death, log.read_text())
        (run,) = Path("runs").glob("killed-*")
        assert forked(lambda run=run: gw.resume(run) and 0, log) == 0, (death, log.read_text())
        assert left(run) == expected, death
        run.rename(home / f"{death[0]}-{death[1]}")
