"""`mixed_outcomes` and `everything`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.core import Usage
from groupwise.data import Batch, Outcome, name_of, pack, rollout_of
from groupwise.methods import DistinctFromOtherOutcomeFilter, OverlongPenalty
from groupwise.rewards import correct_only, everything, mixed_groups, mixed_outcomes, mixed_scores, not_all_correct

NAN = float("nan")
MALFORMED = -1.0
DRAWS = ([1, 0, 1], [1, 1, 1], [0, 0, 0], [1, MALFORMED], [0, MALFORMED], [1, 0.5], [0.5, 0.25])
"""Scores of the verified answers of a prompt; one below 1 is wrong."""
SELECTED: dict[Any, str] = {
    everything: "111 111 111 11 11 11 11",
    mixed_outcomes: "111 000 000 11 00 11 00",
    mixed_groups: "111 000 000 11 00 11 00",
    mixed_scores: "111 000 000 11 00 11 11",
    not_all_correct: "111 000 111 11 11 11 11",
    correct_only: "101 111 000 10 00 10 00",
    DistinctFromOtherOutcomeFilter("part"): "110 000 000 11 00 11 00",
}
"""For each filter, the answers that it selects. The third answer of a prompt has the part of the second."""


@pytest.mark.parametrize("filter", SELECTED, ids=[name_of(filter) for filter in SELECTED])
def test_selected(filter: Any) -> None:
    for scores, expected in zip(DRAWS, SELECTED[filter].split(), strict=True):
        b = pack([rollout_of(scores, subscores={"part": [0.0, 0.5, 0.5][: len(scores)]})])
        b = b.having(outcome=b.outcome.masked_fill(b.verdict_score == MALFORMED, int(Outcome.malformed)))
        b = b.having(verdict_score=b.verdict_score.clamp(min=0.0))
        assert "".join(str(int(x)) for x in filter(b).tolist()) == expected, scores
    if filter in (mixed_outcomes, mixed_groups, mixed_scores):
        for scores in ([0.5, 0.25], [0.5, 0.5]):
            b = pack([rollout_of(scores)])
            b = b.having(outcome=torch.full_like(b.outcome, int(Outcome.scored)))
            assert filter(b).tolist() == [scores[0] != scores[1]] * 2


def selected(scores: list[float]) -> list[bool]:
    return mixed_outcomes(pack([rollout_of(scores)])).tolist()


@pytest.mark.t(28)
@pytest.mark.parametrize(
    "scores, live",
    [
        ([1, 1, 1], False), ([0, 0, 0], False), ([1, 0, 0], True), ([1, 1, 0], True), ([1], False), ([0], False),
        ([NAN, 1, 1], False), ([NAN, 0, 0], False), ([NAN, 1, 0], True), ([NAN, NAN], False), ([0.5, 0.5], False),
        ([0.5, 1], True),
    ],
)  # fmt: skip
def test_a_rollout_is_selected_whole_or_not_at_all(scores: list[float], live: bool) -> None:
    assert selected(scores) == [live] * len(scores)


@pytest.mark.t(28)
def test_mixed_rollouts_are_selected_in_order() -> None:
    script = [[1, 1], [1, 0], [0, 0], [0, 1], [NAN, 1], [1, 0]]
    assert [i for i, scores in enumerate(script) if all(selected(scores))] == [1, 3, 5]


def test_malformed_answers_are_wrong() -> None:
    b = pack([rollout_of([1, 0])]).having(outcome=torch.tensor([Outcome.correct, Outcome.malformed]))
    assert mixed_outcomes(b).all()
    b = b.having(outcome=torch.tensor([Outcome.wrong, Outcome.malformed]))
    assert not mixed_outcomes(b).any()


@pytest.mark.t(30)
def test_shaped_rewards_do_not_make_a_group_mixed() -> None:
    """Filters read outcomes: rewards that differ only by shaping are no signal, and a score of 0.999 is not correct."""
    b: Batch = pack([rollout_of([1, 1, 1], lengths=[2, 9, 16], limit=16)])
    b = b.having(reward=OverlongPenalty(8)(b.verdict_score, b))
    assert len(set(b.reward.tolist())) == 3
    assert not mixed_outcomes(b).any()
    assert not mixed_outcomes(
        b.having(outcome=torch.zeros(3, dtype=torch.long), verdict_score=b.verdict_score * 0.999)
    ).any()


def test_everything_selects_all_samples() -> None:
    assert everything(pack([rollout_of([0, 0, NAN])])).tolist() == [True] * 3


@pytest.mark.parametrize("filter", [mixed_scores, mixed_outcomes, mixed_groups])
def test_scored_answers_are_mixed_if_their_scores_differ(filter: Any) -> None:
    b = pack([rollout_of([0.5, 0.25, NAN])])
    b = b.having(outcome=torch.tensor([Outcome.scored, Outcome.scored, Outcome.unverifiable]))
    assert filter(b).all() and not filter(b.having(verdict_score=torch.full_like(b.verdict_score, 0.5))).any()
    assert not filter(b.take([0, 2])).any() and not filter(b.take([2])).any()


@pytest.mark.parametrize("filter", [not_all_correct, correct_only])
def test_filters_by_outcome_refuse_scores(filter: Any) -> None:
    b = pack([rollout_of([0.5, 0.25])])
    with pytest.raises(Usage) as error:
        filter(b.having(outcome=torch.full_like(b.outcome, int(Outcome.scored))))
    assert "--correct_threshold" in error.value.fix and "mixed_scores" in error.value.fix


def test_mixed_groups_selects_the_groups_of_a_rollout_that_are_mixed() -> None:
    """`mixed_outcomes` selects a rollout whose groups are each of one outcome; `mixed_groups` does not."""
    rollout = rollout_of([1, 1, 0, 0, 1, 0, NAN, 1])
    groups = (0, 0, 1, 1, 2, 2, 3, 3)
    samples = tuple(replace(s, group=g) for s, g in zip(rollout.samples, groups))
    b = pack([replace(rollout, samples=samples)])
    assert mixed_outcomes(b).all()
    assert mixed_groups(b).tolist() == [False] * 4 + [True] * 2 + [False] * 2
