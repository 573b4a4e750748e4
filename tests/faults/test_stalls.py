"""A verifier that blocks the event loop: its answer is unverifiable, and a signal still ends the run."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.runs.checkpoints import RunLock, newest_checkpoint
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from groupwise.training import signal_watchdog
from groupwise.verifiers import grade_function
from tests.faults.small_runs import EVERY, Quick, begun, forked, left, ready, run_from
from tests.processes import HASTE


def judged(run: Path, recipe: Any, at: int, held: Callable[[], Any]) -> Callable[[], int]:
    """The run with an `async` grader that calls `held` in its call number `at`."""

    def act() -> int:
        objects, calls = ready(recipe), []
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the tests' own timer ends in this fork
        signal_watchdog.PATIENCE = signal_watchdog.AGAIN = 0.3

        async def grade(prompt: str, answer: str, gold: Any) -> bool:
            calls.append(answer)
            if len(calls) == at:
                held()
            return answer.endswith(str(gold))

        objects = replace(
            objects, rollout_setting=replace(objects.rollout_setting, verifier=grade_function(grade, deadline=60.0))
        )
        return run_from(run, objects, disk=Quick()).exit_code

    return act


def explode_late() -> None:
    """The same, and only this verdict is late after a second: a busy machine may need longer for another one."""
    watch = signal.getsignal(signal.SIGALRM).__self__  # type: ignore[union-attr]
    deadline, watch._deadline = watch._deadline, HASTE
    signal.setitimer(signal.ITIMER_REAL, HASTE, HASTE)
    try:
        explode()
    finally:
        watch._deadline = deadline


def explode() -> None:
    """A regular expression that takes years and holds the interpreter's lock."""
    re.match(r"(a|a)*b", "a" * 60)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = begun(tmp_path_factory.mktemp("stalls") / "undisturbed", EVERY)
    assert forked(judged(run, EVERY, 0, explode), run.parent / "log") == 0
    return run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_whose_event_loop_is_blocked(
    number: signal.Signals, code: int, undisturbed: Path, tmp_path: Path
) -> None:
    def held() -> None:
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -{number.value} {os.getpid()}"])
        explode()

    run = begun(tmp_path / "run", EVERY)
    assert forked(judged(run, EVERY, 20, held), tmp_path / "log") == code
    text = (tmp_path / "log").read_text()
    assert "the event loop was blocked for" in text and "test_stalls.py" in text and "explode (sample)" in text
    assert f"groupwise resume {run}" in text
    with RunLock(RunLayout(run)):
        pass
    assert forked(judged(run, EVERY, 0, explode), tmp_path / "again") == 0
    assert left(run) == left(undisturbed)


def test_a_grader_that_catches_every_exception_does_not_delay_the_end(tmp_path: Path) -> None:
    """The process ends, and the checkpoint is complete."""

    def held() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            try:
                explode()
            except BaseException:
                continue

    run = begun(tmp_path / "run", EVERY)
    assert forked(judged(run, EVERY, 20, held), tmp_path / "log") == 143
    assert "explode" in (tmp_path / "log").read_text()
    assert newest_checkpoint(RunLayout(run), strict=True)


def test_an_answer_whose_grader_blocks_is_unverifiable(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", EVERY)
    assert forked(judged(run, EVERY, 20, explode_late), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    metrics = [line for line in read_lines(run / "metrics.jsonl") if line["iteration"]]
    assert sum(line["rollout/unverifiable"] for line in metrics) == 1
    assert "explode (sample)" in (tmp_path / "log").read_text()
