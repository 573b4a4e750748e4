"""Tests that runs write only metrics of the table."""

import json
from pathlib import Path

from groupwise.data import find_metric
from groupwise.rewards import mixed_outcomes
from tests.faults.small_runs import EVERY, ran
from tests.toys.echo import ToyRun, small


def undeclared(path: Path) -> set[str]:
    """The names in a JSONL file that the table does not have."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows, path
    return {name for row in rows for name in row if find_metric(name) is None}


def test_a_run_writes_only_declared_metrics(tmp_path: Path) -> None:
    run = ran(tmp_path / "run", EVERY)
    assert undeclared(run / "metrics.jsonl") == undeclared(run / "timings.jsonl") == set()


def test_refills_and_drops_write_only_declared_metrics(tmp_path: Path) -> None:
    method = small("dapo", group_size=4, filter=mixed_outcomes, max_refills=1)
    lines = ToyRun(method, tmp_path, iterations=1).go()
    assert any(name.startswith("rollout/dropped/") for name in lines[1])
    assert undeclared(tmp_path / "metrics.jsonl") == set()
