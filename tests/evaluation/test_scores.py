"""Held-out scores: metrics, evaluation files, comparisons, the progress line and the report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.commands.compare_evaluations import table
from groupwise.core import BadData, Usage
from groupwise.data import Outcome, Rollout, Verdict, rollout_of
from groupwise.evaluation.accuracy import counts, has_outcomes, has_scores, has_verdicts, scores
from groupwise.evaluation.evaluation_files import is_consistent, mean_of, read, result_lines, task_result, write
from groupwise.report.read_run import read as read_run
from groupwise.report.run_warnings import find_warnings, headline
from groupwise.training.progress_output import ProgressPrinter


def scored(*values: float) -> Rollout:
    rollout = rollout_of([1.0] * len(values))
    samples = (s.with_verdict(Verdict(Outcome.scored, x)) for s, x in zip(rollout.samples, values))
    return replace(rollout, samples=tuple(samples))


ROLLOUTS = [scored(-2.0, 4.0), scored(3.0, 5.0)]


def test_the_metrics_are_mean_scores() -> None:
    metrics = scores(ROLLOUTS, ROLLOUTS)
    assert metrics["eval/score"] == metrics["eval/score_greedy"] == 2.5
    assert metrics["eval/score_low"] == 1.0 and metrics["eval/score_high"] == 4.0  # the means of the two problems
    assert not any("accuracy" in name for name in metrics)
    assert "eval/accuracy" in scores([rollout_of([1.0])], [rollout_of([1.0])])


def judged(outcome: Outcome, score: float | None) -> Rollout:
    rollout = rollout_of([1.0])
    return replace(rollout, samples=(rollout.samples[0].with_verdict(Verdict(outcome, score)),))


def test_verdicts_with_an_outcome_and_a_score_have_both_figures() -> None:
    """As with a threshold, or several verifiers."""
    both = [judged(Outcome.correct, 0.75), judged(Outcome.wrong, 0.25)]
    metrics = scores(both, both)
    assert (metrics["eval/accuracy"], metrics["eval/score"]) == (0.5, 0.5) and metrics["eval/score_high"] == 0.75
    result = task_result(both, PROTOCOL | {"n": 1})
    assert list(result["figures"]) == ["avg@1", "score"] and result["scores"] == [0.75, 0.25]
    assert is_consistent(result) and mean_of([result])[0] == 0.5
    outcomes = [judged(Outcome.correct, None), judged(Outcome.unverifiable, None)]
    assert "eval/score" not in scores(outcomes, outcomes) and "scores" not in task_result(outcomes, PROTOCOL | {"n": 1})


PROTOCOL: dict[str, Any] = {
    "n": 2,
    "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
    "task": {"name": "mine", "problems": 2},
    "model": {"name": "m", "sha256": "0" * 64},
}


def test_the_evaluation_has_a_dash_for_the_accuracy_and_the_fix() -> None:
    result = task_result(ROLLOUTS, PROTOCOL)
    assert list(result["figures"]) == ["score"] and result["figures"]["score"][0] == 2.5
    lines = result_lines(result)
    assert any(line.startswith("avg@2      -") and "--correct_threshold" in line for line in lines)
    assert not any("pass@" in line for line in lines) and is_consistent(result)
    assert mean_of([result, result]) is None


def test_an_evaluation_without_a_judged_answer_has_a_dash_and_the_causes(tmp_path: Path) -> None:
    """A figure of 0 would be that of a model without a right answer."""
    failed = replace(judged(Outcome.unverifiable, None).samples[0], verdict=Verdict(Outcome.unverifiable, cause="boom"))
    rollouts = [replace(rollout, samples=(failed, failed)) for rollout in ROLLOUTS]
    assert not has_verdicts(rollouts) and "eval/accuracy" not in scores(rollouts, rollouts)
    result = task_result(rollouts, PROTOCOL)
    assert result["figures"] == {} and is_consistent(result) and mean_of([result]) is None
    lines = result_lines(result)
    assert "avg@2      -      no answer could be judged" in lines and "  4 unverifiable: boom" in lines
    assert not any("0.000" in line for line in lines)
    before = written(tmp_path / "a.json", ROLLOUTS)
    with pytest.raises(Usage, match="no answer could be judged in B") as caught:
        table(before, written(tmp_path / "b.json", rollouts))
    assert "correct the verifier" in caught.value.fix
    with pytest.raises(BadData, match="is damaged"):  # a file with judged answers keeps its figure
        read(written(tmp_path / "c.json", [judged(Outcome.wrong, None)] * 2, figures={}))


def test_scored_answers_are_counted_apart() -> None:
    assert has_scores(ROLLOUTS) and not has_outcomes(ROLLOUTS) and counts(ROLLOUTS)["scored"] == 4
    assert "scored" not in counts([rollout_of([1.0, 0.0])]) and has_outcomes([rollout_of([1.0, 0.0])])


def written(path: Path, rollouts: list[Rollout], **changes: Any) -> Path:
    write(path, {"preset": None, "results": [task_result(rollouts, PROTOCOL) | changes]})
    return path


def test_scores_are_compared_problem_by_problem(tmp_path: Path) -> None:
    before = written(tmp_path / "a.json", ROLLOUTS)
    after = written(tmp_path / "b.json", [scored(-1.0, 5.0), scored(6.0, 6.0)])
    lines = table(before, after)
    assert "score      2.500  4.000  +1.500  (+1.000 .. +2.000)" in lines
    assert lines[-1].strip() == "B is better on 2 problems, A on 0, equal on 0"
    assert not any(line.startswith("avg") for line in lines)


def test_scores_are_not_compared_with_outcomes(tmp_path: Path) -> None:
    outcomes = [judged(Outcome.correct, None), judged(Outcome.wrong, None)]
    with pytest.raises(Usage, match="scores") as caught:
        table(written(tmp_path / "a.json", ROLLOUTS), written(tmp_path / "b.json", outcomes))
    assert "--correct_threshold" in caught.value.fix


@pytest.mark.parametrize("values", [[1.0, 3.0], [1.0], "text"])
def test_a_file_whose_scores_do_not_give_its_figure_is_damaged(tmp_path: Path, values: object) -> None:
    with pytest.raises(BadData, match="is damaged"):
        read(written(tmp_path / "a.json", ROLLOUTS, scores=values))


def run_with(directory: Path, rows: list[dict[str, float]]) -> Path:
    directory.mkdir()
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def evaluated(i: int, **figures: float) -> dict[str, float]:
    return {"iteration": i, "reward": i / 30} | (
        {f"eval/{name}": x for name, x in figures.items()} if i % 10 == 0 else {}
    )


def test_the_report_compares_the_reward_with_the_held_out_score(tmp_path: Path) -> None:
    """The reward is made from the score: an accuracy of 0 beside a rising score is no sign of hacking."""
    rising = [evaluated(i, score_greedy=2 + i, score_low_greedy=1 + i, score_high_greedy=3 + i) for i in range(31)]
    assert [w.rule_name for w in find_warnings(read_run(run_with(tmp_path / "a", rising)))[0]] == []
    above_no_threshold = [evaluated(i, score_greedy=2 + i, accuracy_greedy=0.0) for i in range(31)]
    assert [w.rule_name for w in find_warnings(read_run(run_with(tmp_path / "b", above_no_threshold)))[0]] == []
    flat = [evaluated(i, score_greedy=2 - i / 30) for i in range(31)]
    (warning,) = find_warnings(read_run(run_with(tmp_path / "c", flat)))[0]
    assert warning.rule_name == "reward alone" and "while held-out score went 2 → 1" in warning.text


def test_the_headline_has_the_score_with_its_interval(tmp_path: Path) -> None:
    rows = [evaluated(i, score_greedy=2.0 + i, score_low_greedy=1.5, score_high_greedy=40.0) for i in range(31)]
    run = read_run(run_with(tmp_path / "run", rows))
    assert headline(run, 0) == "held-out greedy score 2.00 → 32.00 (1.50..40.00) in 30 iterations; 0 warnings"


def test_the_progress_line_has_score_and_accuracy_and_a_dash_if_nothing_was_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = ProgressPrinter(3)
    for figures, text in (
        ({"eval/score_greedy": 2.5, "eval/unverifiable": 0.0}, "held-out score 2.500"),
        ({"eval/score_greedy": 2.5, "eval/accuracy_greedy": 0.5, "eval/unverifiable": 0.5}, "held-out 0.500  held-out"),
        ({"eval/unverifiable": 1.0}, "held-out -"),
    ):
        progress({"iteration": 3} | figures, {})
        assert text in capsys.readouterr().err
