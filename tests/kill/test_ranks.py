"""A rank or the driver of a run killed at each save: resumed on 1, 2 and 4 ranks, it ends as if undisturbed."""

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.cluster.local import LocalProcesses
from groupwise.training.run_recorder import RunRecorder
from tests.faults.small_runs import forked, left_without_recipe
from tests.processes import wait_until_gone

pytestmark = pytest.mark.kill

SAVES = 4
"""Checkpoints of a run: one before the first iteration, and one after each."""
SMALL = {
    "iterations": SAVES - 1, "prompts": 2, "method.group_size": 4, "method.minibatches": 1, "sampling.max_tokens": 12,
    "evaluate.problems": 2, "save.every": 1, "cluster.reduction_lanes": 4, "cluster.deadline": 60.0,
}  # fmt: skip
TWO: Mapping[str, Any] = {"cluster.ranks": 2}
BOUNDARIES = [(when, count) for count in range(1, SAVES + 1) for when in ("before", "after")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files of a run in one process."""
    return left_without_recipe(gw.train(out=tmp_path_factory.mktemp("undisturbed"), **SMALL).directory)


def killed_run(
    out: Path, victim: str, when: str, count: int, number: int = signal.SIGKILL, settings: Mapping[str, Any] = TWO
) -> None:
    """Train on two ranks, and kill or stop one of them before or after a save. Call it in a fork: it patches the
    package.
    """
    save, enter = RunRecorder.save, LocalProcesses.__enter__
    counts = {"before": 0, "after": 0}
    pids = [os.getpid()]

    def started(self: LocalProcesses) -> LocalProcesses:
        enter(self)
        pids.extend(self.pids.values())
        (out / "pids").write_text(" ".join(map(str, pids)))
        return self

    def passed(moment: str) -> None:
        counts[moment] += 1
        if (moment, counts[moment]) == (when, count):
            os.kill(pids[victim == "rank 1"], number)

    def saved(self: RunRecorder, *args: Any, **how: Any) -> None:
        passed("before")
        save(self, *args, **how)
        passed("after")

    LocalProcesses.__enter__, RunRecorder.save = started, saved  # type: ignore[method-assign]
    gw.train(out=out / "runs", **SMALL | settings)


@pytest.mark.parametrize(("when", "count"), BOUNDARIES)
@pytest.mark.parametrize("victim", ("driver", "rank 1"))
def test_a_run_resumed_on_any_number_of_ranks_ends_as_if_undisturbed(
    victim: str, when: str, count: int, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    code = forked(lambda: killed_run(tmp_path, victim, when, count), log)
    # A rank that dies after the last step is missed by nobody.
    expected = -signal.SIGKILL if victim == "driver" else int(count < SAVES)
    assert code == expected, log.read_text()
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()[1:]])
    (run,) = (tmp_path / "runs").iterdir()
    for ranks in (1, 2, 4):
        again = Path(shutil.copytree(run, tmp_path / f"{ranks}" / run.name, symlinks=True))
        assert forked(lambda again=again, ranks=ranks: gw.resume(again, ranks=ranks) and 0, log) == 0, log.read_text()
        assert left_without_recipe(again) == undisturbed, ranks


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("when", ("before", "after"))
def test_a_sharded_run_whose_rank_is_killed_or_stopped_ends_as_if_undisturbed(
    when: str, number: int, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    """Around the save of the first iteration, for which each rank writes its part. A stopped rank is lost after
    `cluster.deadline`, and rank 0 kills it. The run continues on ranks with whole weights, whose files are comparable.
    """
    log = tmp_path / "log"
    sharded = {**TWO, "cluster.shard": "full", "cluster.deadline": 20.0}
    assert forked(lambda: killed_run(tmp_path, "rank 1", when, 2, number, sharded), log) == 1, log.read_text()
    assert "rank 1" in log.read_text()
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()[1:]])
    (run,) = (tmp_path / "runs").iterdir()
    for ranks in (1, 2):
        again = Path(shutil.copytree(run, tmp_path / f"{ranks}" / run.name, symlinks=True))
        code = forked(lambda again=again, ranks=ranks: gw.resume(again, ranks=ranks, shard="none") and 0, log)
        assert code == 0, log.read_text()
        assert left_without_recipe(again) == undisturbed, ranks
