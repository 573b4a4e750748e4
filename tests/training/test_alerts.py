"""Alerts while a run trains, and the end of a run that has solved its task."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.config.user_code import UserCode
from groupwise.core import NoSignal
from groupwise.data import (
    ENTROPY_SHARE,
    LARGEST_GAP,
    NO_SIGNAL,
    TRUNCATED,
    Outcome,
    Prompt,
    Sample,
    Verdict,
    metric_bound,
)
from groupwise.evaluation.accuracy import scores
from groupwise.lifecycle.alerts import AlertDetector
from groupwise.report.read_run import read
from groupwise.report.run_warnings import headline
from groupwise.rewards import mixed_outcomes
from groupwise.training.build_run import RunObjects
from groupwise.training.progress_output import ProgressPrinter
from groupwise.training.run_guards import PATIENCE, RunGuards
from tests.faults.small_runs import EVERY, Quick, begun, left, lines, ready, reopen, run_from
from tests.rollout.fakes import judged_by


@pytest.mark.parametrize(
    ("bad", "good", "words"),
    [
        (
            {TRUNCATED: metric_bound(TRUNCATED) + 0.01},
            {TRUNCATED: metric_bound(TRUNCATED)},
            "raise sampling.max_tokens",
        ),
        ({NO_SIGNAL: 1.0}, {NO_SIGNAL: 0.89, "rollout/selected": 1}, "no group has a signal"),
        ({"rollout/selected": 0}, {"rollout/selected": 2}, "no group has a signal"),
        ({NO_SIGNAL: 1.0, "groups/all_right": 0.9}, {NO_SIGNAL: 1.0, "groups/all_right": 1}, "no group has a signal"),
        ({LARGEST_GAP: 6e-4}, {LARGEST_GAP: 4e-4}, "the run stops above 0.001"),
    ],
)
def test_an_alert_is_printed_once_above_its_bound(bad: dict, good: dict, words: str) -> None:
    alerts = AlertDetector(max_logprob_diff=1e-3)
    assert alerts({"iteration": 1, **good}) == []
    (text,) = alerts({"iteration": 2, **bad})
    assert text.startswith("warning: iteration 2: ") and words in text
    assert alerts({"iteration": 3, **bad}) == []


def test_entropy_collapses_against_its_maximum_over_the_window() -> None:
    alerts = AlertDetector(max_logprob_diff=1.0)
    for i in range(30):
        assert alerts({"iteration": i, "reward": 0.5, "entropy": 1.0 - i / 40}) == []
    (text,) = alerts({"iteration": 30, "reward": 0.5, "entropy": ENTROPY_SHARE * 0.5})
    assert "entropy fell from 0.75 to 0.1 within 20 iterations" in text
    slow = AlertDetector(max_logprob_diff=1.0)
    assert not any(slow({"iteration": i, "reward": 0.5, "entropy": 0.95**i}) for i in range(100))


def test_falling_entropy_is_no_alarm_while_the_run_learns_or_has_solved_its_task() -> None:
    def texts(rewards: list[float], correct: bool = True) -> list[str]:
        alerts = AlertDetector(max_logprob_diff=1.0)
        lines = [
            {
                "iteration": i,
                "entropy": 0.7**i,
                "reward": reward,
                "reward_std": 0.4,
                "outcome/correct": reward * correct,
            }
            for i, reward in enumerate(rewards)
        ]
        return [text for line in lines for text in alerts(line)]

    rising = [0.4 + i / 20 for i in range(12)]
    assert texts(rising) == [] and texts([*rising, *[0.96] * 20]) == []
    (flat,) = texts([0.4] * 12)
    assert "entropy fell" in flat
    (collapsed,) = texts([*rising, *[0.5] * 20])  # learned, and lost it
    assert "entropy fell" in collapsed
    (scored,) = texts([*rising, *[0.96] * 20], correct=False)  # a score has no end that one could know
    assert "entropy fell" in scored


def test_a_task_is_solved_only_if_all_answers_of_several_iterations_are_right() -> None:
    guards = RunGuards(max_unverifiable=0.1, max_logprob_diff=1.0)
    assert [guards.check_signal(0, {}, all_right=True) for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]
    resumed = RunGuards(max_unverifiable=0.1, max_logprob_diff=1.0)
    resumed.restore(guards.state())
    assert resumed.all_correct_iterations == PATIENCE
    mixed = RunGuards(max_unverifiable=0.1, max_logprob_diff=1.0)
    mixed.check_signal(0, {}, all_right=True)
    mixed.check_signal(0, {}, all_right=False)
    with pytest.raises(NoSignal):
        mixed.check_signal(0, {}, all_right=True)


SOLVED = replace(EVERY, iterations=9, method=replace(EVERY.method, filter=mixed_outcomes, max_refills=1))


def always_right(objects: RunObjects) -> RunObjects:
    """The run with a verifier to which every answer is correct."""

    async def right(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct)

    return replace(objects, rollout_setting=replace(objects.rollout_setting, verifier=judged_by(right)))


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = begun(tmp_path_factory.mktemp("solved") / "run", SOLVED)
    ending = run_from(run, always_right(ready(SOLVED)), disk=Quick())
    assert ending.exit_code == 0
    assert ending.message.startswith(
        f"solved: every answer of the last {PATIENCE} iterations is correct, after 3 of 9 iterations"
    )
    return run


def test_a_solved_run_ends_with_its_model(solved: Path) -> None:
    assert (solved / "model" / "config.json").is_file()
    assert [line["iteration"] for line in lines(solved)] == [0, 1, 2, 3]
    assert "eval/accuracy" in lines(solved)[-1]


def test_the_report_says_that_a_run_is_solved(solved: Path, tmp_path: Path) -> None:
    assert " in 3 of 9 iterations: solved; " in headline(read(solved), 0)
    stopped = shutil.copytree(solved, tmp_path / "run")
    shutil.rmtree(stopped / "model")
    assert " in 3 of 9 iterations so far; " in headline(read(stopped), 0)


def test_a_solved_run_goes_on_only_if_it_is_extended(
    solved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(solved, tmp_path / "run"))
    before = left(run)
    ending = run_from(run, always_right(reopen(run, UserCode())), disk=Quick())
    assert ending.exit_code == 0 and ending.message.startswith("solved: ") and left(run) == before
    output = capsys.readouterr().err
    assert "nothing to do: the task is solved, after 3 of 9 iterations" in output
    assert f"groupwise resume {run} --iterations 18" in output
    ending = run_from(run, always_right(reopen(run, UserCode(), 18)), disk=Quick())
    assert [line["iteration"] for line in lines(run)] == [0, 1, 2, 3, 4, 5, 6]
    assert "after 6 of 18 iterations" in ending.message
    assert (run / "model").is_dir() and (run / "models" / "000003").is_dir()


def test_an_evaluation_of_no_problem_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert scores([], []) == {}
    ProgressPrinter(1)({"iteration": 0, "step": 0, **scores([], [])}, {})
    assert capsys.readouterr().err == "0/1  held-out -\n"


def test_held_out_answers_without_a_verdict_are_reported_once() -> None:
    alerts = AlertDetector(max_logprob_diff=1e-3)
    (text,) = alerts({"iteration": 2, "eval/unverifiable": 0.57})
    assert "57% of the held-out answers could not be graded" in text
    assert (
        alerts({"iteration": 4, "eval/unverifiable": 0.9}) == [] == alerts({"iteration": 6, "eval/unverifiable": 0.0})
    )
