"""What a run must not go on with."""

import json

import pytest

from groupwise.data import Diverged, Mismatch, NoSignal, Unverifiable
from groupwise.learner import NO_TOKEN
from groupwise.training.guards import PATIENCE, WINDOW, Guards


def guards() -> Guards:
    return Guards(max_unverifiable=0.1, max_gap=1e-3)


def test_a_first_iteration_that_failed_whole_stops_at_once() -> None:
    with pytest.raises(Unverifiable, match="8 of 8 answers were unverifiable over 1 iterations") as error:
        guards().check_verdicts(8, 8, "ImportError: no sympy")
    assert error.value.evidence == "ImportError: no sympy"
    guards().check_verdicts(7, 8, "")
    guards().check_verdicts(0, 0, "")  # nothing was drawn: that is no failure of a verifier
    later = guards()
    later.check_verdicts(0, 8, "")
    later.check_verdicts(8, 8, "")


def test_a_share_over_twenty_iterations() -> None:
    borne = guards()
    for _ in range(5 * WINDOW):
        borne.check_verdicts(1, 10, "")  # exactly a tenth is allowed
    assert len(borne.judged) == WINDOW
    over = guards()
    for _ in range(WINDOW - 1):
        over.check_verdicts(2, 10, "")
    with pytest.raises(Unverifiable, match="40 of 200 answers were unverifiable over 20 iterations"):
        over.check_verdicts(2, 10, "")


def test_what_lies_further_back_is_forgotten() -> None:
    seen = guards()
    for _ in range(WINDOW - 1):
        seen.check_verdicts(1, 10, "")
    seen.check_verdicts(0, 10, "")
    seen.check_verdicts(1, 10, "")
    with pytest.raises(Unverifiable):
        seen.check_verdicts(3, 10, "")


def test_silence_counts_only_in_a_row() -> None:
    seen = guards()
    for live in (0, 0, 1, 0, 0):
        seen.check_signal(live, {"mixed_outcomes": 4, "unverifiable": 1})
    with pytest.raises(NoSignal) as error:
        seen.check_signal(0, {"unverifiable": 1, "mixed_outcomes": 4})
    assert error.value.evidence == "4 groups mixed_outcomes, 1 groups unverifiable"


def test_skipped_steps_count_in_a_row_over_iterations() -> None:
    seen = guards()
    seen.check_steps(["not finite", "not finite", ""], "run/skipped")
    seen.check_steps(["", "not finite"], "run/skipped")
    with pytest.raises(Diverged, match="not finite") as error:
        seen.check_steps(["not finite", "not finite", ""], "run/skipped")
    assert "run/skipped" in error.value.evidence


def test_steps_without_a_token_count_only_where_an_iteration_has_no_other() -> None:
    seen = guards()
    for _ in range(2):
        seen.check_steps([NO_TOKEN] * 4, "")
        seen.check_steps([NO_TOKEN] * 4, "")
        seen.check_steps([NO_TOKEN, NO_TOKEN, NO_TOKEN, ""], "")
    seen.check_steps(["not finite", NO_TOKEN, "not finite"], "")
    with pytest.raises(Diverged, match="not finite"):
        seen.check_steps([NO_TOKEN, "not finite"], "")


def test_a_gap_within_its_bound_and_beyond() -> None:
    guards().check_gap(1e-3)
    for gap in (1.1e-3, float("inf"), float("nan")):
        with pytest.raises(Mismatch):
            guards().check_gap(gap)


def test_counts_survive_a_resume() -> None:
    seen, resumed = guards(), guards()
    seen.check_signal(0, {})
    seen.check_steps(["x", "x"], "")
    seen.check_verdicts(1, 5, "")
    resumed.restore(json.loads(json.dumps(seen.state())))
    assert resumed == seen
    with pytest.raises(Diverged):
        resumed.check_steps(["x"] * (PATIENCE - 2), "")
