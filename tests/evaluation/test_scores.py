"""Answers that a verifier only scores have a mean score, and no accuracy."""

from dataclasses import replace
from typing import Any

import pytest

from groupwise.data import Outcome, Rollout, Verdict, rollout_of
from groupwise.evaluation.evaluate import counts, has_scores, scores
from groupwise.evaluation.result import is_consistent, mean_of, number, number_lines


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


def test_the_evaluation_has_a_dash_for_the_accuracy_and_the_fix() -> None:
    protocol: dict[str, Any] = {
        "n": 2,
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        "task": {"name": "mine", "problems": 2},
        "model": {"name": "m", "sha256": "0" * 64},
    }
    result = number(ROLLOUTS, protocol)
    assert list(result["figures"]) == ["score"] and result["figures"]["score"][0] == 2.5
    lines = number_lines(result)
    assert any(line.startswith("avg@2      -") and "--threshold" in line for line in lines)
    assert not any("pass@" in line for line in lines) and is_consistent(result)
    with pytest.raises(Exception, match="no common mean"):
        mean_of([result, result])


def test_scored_answers_are_counted_apart() -> None:
    assert has_scores(ROLLOUTS) and counts(ROLLOUTS)["scored"] == 4
    assert "scored" not in counts([rollout_of([1.0, 0.0])]) and not has_scores([rollout_of([1.0, 0.0])])
