"""Alerts while a run trains, and the end of a run that has solved its task."""

from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.data import (
    ENTROPY_SHARE,
    LARGEST_GAP,
    NO_SIGNAL,
    TRUNCATED,
    NoSignal,
    Outcome,
    Prompt,
    Sample,
    Verdict,
    metric_bound,
)
from groupwise.evaluation.evaluate import scores
from groupwise.rewards import mixed_outcomes
from groupwise.training.alerts import Alerts
from groupwise.training.guards import PATIENCE, Guards
from groupwise.training.progress import Progress
from groupwise.training.run import run_from
from tests.faults.small_runs import EVERY, begun, lines, ready


@pytest.mark.parametrize(
    ("bad", "good", "words"),
    [
        (
            {TRUNCATED: metric_bound(TRUNCATED) + 0.01},
            {TRUNCATED: metric_bound(TRUNCATED)},
            "raise sampling.max_tokens",
        ),
        ({NO_SIGNAL: 1.0}, {NO_SIGNAL: 0.99, "rollout/selected": 1}, "no group has a signal"),
        ({"rollout/selected": 0}, {"rollout/selected": 2}, "no group has a signal"),
        ({LARGEST_GAP: 6e-4}, {LARGEST_GAP: 4e-4}, "the run stops above 0.001"),
    ],
)
def test_an_alert_is_printed_once_above_its_bound(bad: dict, good: dict, words: str) -> None:
    alerts = Alerts(max_gap=1e-3)
    assert alerts({"iteration": 1, **good}) == []
    (text,) = alerts({"iteration": 2, **bad})
    assert text.startswith("warning: iteration 2: ") and words in text
    assert alerts({"iteration": 3, **bad}) == []


def test_entropy_collapses_against_its_maximum_over_the_window() -> None:
    alerts = Alerts(max_gap=1.0)
    for i in range(30):
        assert alerts({"iteration": i, "entropy": 1.0 - i / 40}) == []
    (text,) = alerts({"iteration": 30, "entropy": ENTROPY_SHARE * 0.5})
    assert "entropy fell from 0.75 to 0.1 within 20 iterations" in text
    slow = Alerts(max_gap=1.0)
    assert not any(slow({"iteration": i, "entropy": 0.95**i}) for i in range(100))


def test_a_task_is_solved_only_if_all_answers_of_several_iterations_are_right() -> None:
    guards = Guards(max_unverifiable=0.1, max_gap=1.0)
    assert [guards.check_signal(0, {}, all_right=True) for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]
    resumed = Guards(max_unverifiable=0.1, max_gap=1.0)
    resumed.restore(guards.state())
    assert resumed.right == PATIENCE
    mixed = Guards(max_unverifiable=0.1, max_gap=1.0)
    mixed.check_signal(0, {}, all_right=True)
    mixed.check_signal(0, {}, all_right=False)
    with pytest.raises(NoSignal):
        mixed.check_signal(0, {}, all_right=True)


def test_a_solved_run_ends_with_its_model(tmp_path: Path) -> None:
    recipe = replace(EVERY, iterations=9, method=replace(EVERY.method, filter=mixed_outcomes, refill=1))
    run, runtime = begun(tmp_path / "run", recipe), ready(recipe)

    async def right(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct)

    runtime.buffer.setting = replace(runtime.buffer.setting, verifier=right)
    ending = run_from(run, runtime)
    assert ending.code == 0
    assert ending.message.startswith(f"solved: every answer of the last {PATIENCE} iterations is correct, after 3")
    assert (run / "model" / "config.json").is_file()
    assert [line["iteration"] for line in lines(run)] == [0, 1, 2, 3]
    assert "eval/accuracy" in lines(run)[-1]


def test_an_evaluation_of_no_problem_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert scores([], []) == {}
    Progress(1)({"iteration": 0, "step": 0, **scores([], [])}, {})
    assert capsys.readouterr().err == "0/1  held-out -\n"
