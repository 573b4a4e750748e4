"""Engines and the driver of a run with a lag of 2 killed: each draw is trained once, and no token is too old."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.engines import Served
from groupwise.engines.remote import engine_slots
from groupwise.engines.remote.replica import Replica
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from tests.faults.small_runs import forked
from tests.processes import hasten

pytestmark = pytest.mark.kill

LAG, ITERATIONS, GROUP = 2, 8, 4
SMALL = {
    "iterations": ITERATIONS, "prompts": 4, "method.group_size": GROUP, "method.minibatches": 1,
    "sampling.max_tokens": 24, "evaluate.problems": 2, "save.every": 2, "cluster.max_staleness": LAG,
}  # fmt: skip
DISTURBED = {30: signal.SIGKILL, 60: signal.SIGSTOP, 90: signal.SIGKILL}
"""By the number of its request: the signal that the engine gets."""


def disturbed_run(out: Path, driver_dies_after: int) -> None:
    """Train with two engines, some killed or stopped while they sample, until the driver dies. Call it in a fork."""
    sample, requests = Replica.sample, [0]

    async def disturbed(self: Replica, request: Any) -> Any:
        requests[0] += 1
        if number := DISTURBED.get(requests[0]):
            os.kill(self.process.pid, number)
            if number == signal.SIGSTOP:
                hasten(self)
        return await sample(self, request)

    def die(run: gw.Run, line: dict[str, Any]) -> None:
        if line["iteration"] == driver_dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    Replica.sample, engine_slots.PAUSE = disturbed, 0.0  # type: ignore[method-assign]
    gw.train(out=out, on_iteration=die, engine=Served(), **SMALL)


@pytest.mark.t(45)
@pytest.mark.parametrize("iteration", (3, 5))
def test_each_draw_is_trained_once_and_no_token_above_the_lag(iteration: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert forked(lambda: disturbed_run(tmp_path / "runs", iteration), log) == -signal.SIGKILL, log.read_text()
    (run,) = (tmp_path / "runs").iterdir()
    assert forked(lambda: gw.resume(run) and 0, log) == 0, log.read_text()
    layout = RunLayout(run)
    lines = [line for line in read_lines(layout.metrics) if line["iteration"]]
    assert [line["iteration"] for line in lines] == [*range(1, ITERATIONS + 1)]
    assert 1 <= max(line["staleness/max"] for line in lines) <= LAG
    draws = Counter(s["draw"] for i in range(1, ITERATIONS + 1) for s in read_lines(run / f"samples/{i:06d}.jsonl"))
    assert set(draws.values()) == {GROUP} and sorted(draws) == [*range(len(draws))]
