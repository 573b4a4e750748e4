"""A run is shown: lines in a pipe, a table in a notebook, figures in `repr`; and a stopped run has a model."""

import asyncio
import io
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import groupwise as gw
from groupwise.api import notebook
from groupwise.api.evaluate import Evaluation
from groupwise.api.notebook import LiveTable, TableProgress, curve
from groupwise.core import BadData, Usage
from groupwise.data import REWARD, TOKENS_PER_SECOND
from groupwise.evaluation.evaluation_files import interval_text
from groupwise.lifecycle.alerts import AlertDetector
from groupwise.training.progress_output import MINUTE, ProgressPrinter
from groupwise.verifiers import grade_function

ROWS = [{"prompt": f"{a}*{b}+{c}=", "answer": a * b + c} for a in range(2, 7) for b in range(2, 5) for c in range(3)]
SMALL: dict[str, Any] = {"model": "calculator", "prompts": 2, "max_tokens": 6, "evaluate": {"problems": 3}}


def right(answer, gold):
    return float(answer.endswith(f"#{gold}"))


class Clock:
    """A clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def line(iteration: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metrics and timings of an iteration."""
    return {"iteration": iteration, REWARD: 0.5}, {TOKENS_PER_SECOND: 10.0}


def test_a_pipe_gets_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    progress = ProgressPrinter(500, out=out)
    for iteration in range(4):  # a tenth of the run is 50 iterations
        progress(*line(iteration))
        clock.now += MINUTE / 2
    assert [text.split()[0] for text in out.getvalue().splitlines()] == ["0/500", "2/500"]
    for _ in range(3):
        clock.now += MINUTE / 2
        progress.tick("learn")
    assert out.getvalue().splitlines()[2:] == ["  3/500  learn: 60 s so far", "  3/500  learn: 120 s so far"]


def test_a_terminal_shows_the_seconds_of_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    progress = ProgressPrinter(500, out=out)
    progress.live = True
    progress(*line(1))
    clock.now += 7
    progress.tick("sample")
    assert out.getvalue().endswith("sample 7 s") and out.getvalue().count("\r") == 2 and "\n" not in out.getvalue()


def test_a_thread_ticks_until_the_context_ends() -> None:
    progress, seen = ProgressPrinter(1, out=io.StringIO()), []
    progress.tick = seen.append  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groupwise.training.progress_output.TICK", 0.001)
        with progress.watching(lambda: "learn"):
            while not seen:
                time.sleep(0.001)
    count = len(seen)
    time.sleep(0.01)
    assert seen[0] == "learn" and len(seen) == count


def test_the_table_is_escaped_and_moves_within_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pages = Clock(monkeypatch), []
    table = LiveTable(pages.append)
    table.refresh()
    progress = table.progress(9, 0)
    progress.notify("run: <script>\nuse --template chat")
    table.refresh()
    with progress.watching(lambda: "<b>sample"):
        clock.now += 3
        table.refresh()
        table.refresh()  # in the same second
    for iteration in range(3):
        progress(*line(iteration))
    table.refresh(ended=True)
    assert len(pages) == 3 and "0 of 9 iterations; working: 0 s" in pages[0]
    assert "&lt;b&gt;sample: 3 s" in pages[1] and "run: &lt;script&gt;\nuse" in pages[1]
    assert "<td>2</td><td>0.500</td><td>10</td>" in pages[2] and "2 of 9 iterations" in pages[2]
    assert not any("<script" in page or "<b>sample" in page for page in pages)


def test_a_curve_needs_two_points() -> None:
    rows = [{"iteration": i, REWARD: float(i)} for i in range(3)]
    assert curve(rows[:1], REWARD) == "" and curve([], REWARD) == ""
    assert 'points="0.0,26.0 60.0,14.0 120.0,2.0"' in curve(rows, REWARD)
    progress = TableProgress(2)
    progress({"iteration": 0, REWARD: float("nan")}, {})
    assert "nan" in progress.html(ended=True)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A pretended kernel of IPython: the pages that a cell shows."""
    pages: list[str] = []
    handle = SimpleNamespace(update=pages.append)
    display = ModuleType("IPython.display")
    display.__dict__.update(HTML=str, display=lambda page, display_id: handle)
    shell = ModuleType("IPython")
    shell.__dict__.update(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "TICK", 0.0)
    return pages


def test_a_stopped_run_in_a_notebook(cell: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = {**SMALL, "method": gw.gspo(group_size=2, minibatches=1), "out": tmp_path, "iterations": 3}

    async def kernel() -> gw.Run:
        def stop(run: gw.Run, metrics: dict[str, Any]) -> None:
            if metrics["iteration"] == 1:
                run.stop()

        return gw.train(data=ROWS, reward=right, on_iteration=stop, **settings)

    run = asyncio.run(kernel())
    output = capfd.readouterr()
    assert output.err == "" and "machine: cpu" in output.out and "stopped by a callback after 1 of 3" in output.out
    assert "0 of 3 iterations; " in cell[0] and "1 of 3 iterations" in cell[-1] and "working" not in cell[-1]
    again = gw.Run(run.directory)
    assert run.stop_reason == again.stop_reason == "stopped by a callback"
    assert json.loads((run.directory / "run.json").read_text())["stopped"] == run.stop_reason
    assert "1 of 3 iterations so far" in repr(again) and repr(again).endswith("; stopped by a callback>")
    assert "stopped by a callback" in again._repr_html_()
    assert run.model_dir.name == "000001"
    assert gw.export(run, tmp_path / "model", dtype="bfloat16") == tmp_path / "model"
    assert gw.sample(run.export(tmp_path / "other", at=1), "2*3+4=") == run.sample("2*3+4=")
    with pytest.raises(Usage, match="exists already"):
        run.export(tmp_path / "model")
    with pytest.raises(Usage, match="dtype is 'int4'"):
        run.export(tmp_path / "third", dtype="int4")
    with pytest.raises(BadData, match="no model of iteration 9"):
        run.export(tmp_path / "third", at=9)
    with pytest.raises(Usage, match="must be named again") as caught:
        gw.resume(run)
    assert "pass the reward function again" in caught.value.fix and "--use" not in caught.value.fix
    finished = gw.resume(run, reward=right)
    assert finished.stop_reason == gw.Run(run.directory).stop_reason == "" and "stopped" not in json.loads(
        (run.directory / "run.json").read_text()
    )
    assert finished.model_dir.name == "model"


def test_outside_a_notebook_results_are_output_and_progress_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    method = gw.gspo(group_size=2, minibatches=1)
    run = gw.train(data=ROWS, reward=right, iterations=1, out=tmp_path, method=method, **SMALL)
    output = capfd.readouterr()
    assert output.out.startswith("done: 1 iterations") and "gw.evaluate(" in output.out
    assert "machine: cpu" in output.err and "1/1  reward" in output.err and "done" not in output.err
    assert repr(run).startswith(f"<Run {run.directory}: ") and repr(run).endswith("warnings>")


def test_an_evaluation_shows_its_figures() -> None:
    protocol = {"sampling": {"temperature": 0}}
    evaluation = Evaluation(results=[{"protocol": protocol, "figures": {"score": [0.5, 0.4, 0.6]}}])
    assert repr(evaluation) == "<Evaluation: greedy score 0.500>" and repr(Evaluation(results=[])).endswith(
        "no figures>"
    )


def test_an_interval_of_equal_scores_is_a_dash() -> None:
    assert interval_text(0.25, 0.25, 1) == "(-, 1 problem)"
    assert interval_text(0.2, 0.3, 4) == "(0.200 .. 0.300, 95 % over 4 problems)"


def test_rewards_that_teach_nothing_are_told() -> None:
    blind = grade_function(lambda prompt, gold: 1.0, in_process=True)
    assert "takes no answer: all answers to a prompt get the same reward" in blind.notices[0]
    for function in (lambda answer: 1.0, lambda a, b, c: 1.0, lambda row, **columns: 1.0, lambda completions: [1.0]):
        assert grade_function(function, in_process=True).notices == ()
    alerts = AlertDetector(1.0)
    told = alerts({"iteration": 1, "frac_reward_zero_std": 0.95, "groups/all_right": 0.02})
    assert told == ["warning: iteration 1: 93% of the groups have equal rewards, from which nothing is learned"]
    assert AlertDetector(1.0)({"iteration": 1, "frac_reward_zero_std": 0.95, "groups/all_right": 0.5}) == []
