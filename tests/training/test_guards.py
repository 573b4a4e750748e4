"""Tests of the guards that stop a run."""

import json

import pytest

from groupwise.core import Diverged, LogprobMismatch, NoSignal, Unverifiable
from groupwise.learner import NO_TOKEN
from groupwise.training.run_guards import PATIENCE, WINDOW, RunGuards


def guards() -> RunGuards:
    return RunGuards(max_unverifiable=0.1, max_logprob_diff=1e-3)


def test_a_first_iteration_of_unverifiable_answers_stops_the_run() -> None:
    with pytest.raises(Unverifiable, match="8 of 8 answers were unverifiable over 1 iterations") as error:
        guards().check_verdicts(8, 8, "ImportError: no sympy")
    assert error.value.evidence == "ImportError: no sympy"
    guards().check_verdicts(7, 8, "")
    guards().check_verdicts(0, 0, "")  # without answers there is no failure of a verifier
    later = guards()
    later.check_verdicts(0, 8, "")
    later.check_verdicts(8, 8, "")


def test_the_share_of_unverifiable_answers_is_over_twenty_iterations() -> None:
    tolerated = guards()
    for _ in range(5 * WINDOW):
        tolerated.check_verdicts(1, 10, "")  # exactly a tenth is allowed
    assert len(tolerated.answer_counts) == WINDOW
    over = guards()
    for _ in range(WINDOW - 1):
        over.check_verdicts(2, 10, "")
    with pytest.raises(Unverifiable, match="40 of 200 answers were unverifiable over 20 iterations"):
        over.check_verdicts(2, 10, "")


def test_iterations_before_the_window_do_not_count() -> None:
    guard = guards()
    for _ in range(WINDOW - 1):
        guard.check_verdicts(1, 10, "")
    guard.check_verdicts(0, 10, "")
    guard.check_verdicts(1, 10, "")
    with pytest.raises(Unverifiable):
        guard.check_verdicts(3, 10, "")


def test_iterations_without_signal_count_only_in_a_row() -> None:
    guard = guards()
    for live in (0, 0, 1, 0, 0):
        guard.check_signal(live, {"mixed_outcomes": 4, "unverifiable": 1})
    with pytest.raises(NoSignal) as error:
        guard.check_signal(0, {"unverifiable": 1, "mixed_outcomes": 4})
    assert error.value.evidence == "4 rollouts dropped: mixed_outcomes, 1 rollouts dropped: unverifiable"


def test_skipped_steps_count_in_a_row_over_iterations() -> None:
    guard = guards()
    guard.check_steps(["not finite", "not finite", ""], "run/skipped")
    guard.check_steps(["", "not finite"], "run/skipped")
    with pytest.raises(Diverged, match="not finite") as error:
        guard.check_steps(["not finite", "not finite", ""], "run/skipped")
    assert "run/skipped" in error.value.evidence


def test_steps_without_a_token_count_only_if_an_iteration_has_no_others() -> None:
    guard = guards()
    for _ in range(2):
        guard.check_steps([NO_TOKEN] * 4, "")
        guard.check_steps([NO_TOKEN] * 4, "")
        guard.check_steps([NO_TOKEN, NO_TOKEN, NO_TOKEN, ""], "")
    guard.check_steps(["not finite", NO_TOKEN, "not finite"], "")
    with pytest.raises(Diverged, match="not finite"):
        guard.check_steps([NO_TOKEN, "not finite"], "")


def test_a_gap_above_its_bound_stops_the_run() -> None:
    guards().check_gap(1e-3)
    for gap in (1.1e-3, float("inf"), float("nan")):
        with pytest.raises(LogprobMismatch):
            guards().check_gap(gap)


def test_a_resume_restores_the_counts() -> None:
    guard, resumed = guards(), guards()
    guard.check_signal(0, {})
    guard.check_steps(["x", "x"], "")
    guard.check_verdicts(1, 5, "")
    resumed.restore(json.loads(json.dumps(guard.state())))
    assert resumed == guard
    with pytest.raises(Diverged):
        resumed.check_steps(["x"] * (PATIENCE - 2), "")
