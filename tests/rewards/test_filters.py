"""`mixed_outcomes` and `everything`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.data import Batch, Outcome, Usage, pack, rollout_of
from groupwise.rewards import (
    Overlong,
    correct_only,
    everything,
    mixed_groups,
    mixed_outcomes,
    mixed_scores,
    not_all_correct,
)

NAN = float("nan")


def selected(scores: list[float]) -> list[bool]:
    return mixed_outcomes(pack([rollout_of(scores)])).tolist()


@pytest.mark.t(28)
@pytest.mark.parametrize(
    "scores, live",
    [
        ([1, 1, 1], False),
        ([0, 0, 0], False),
        ([1, 0, 0], True),
        ([1, 1, 0], True),
        ([1], False),
        ([0], False),
        ([NAN, 1, 1], False),
        ([NAN, 0, 0], False),
        ([NAN, 1, 0], True),
        ([NAN, NAN], False),
        ([0.5, 0.5], False),
        ([0.5, 1], True),
    ],
)
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
    b = b.having(reward=Overlong(8)(b.score, b))
    assert len(set(b.reward.tolist())) == 3
    assert not mixed_outcomes(b).any()
    assert not mixed_outcomes(b.having(outcome=torch.zeros(3, dtype=torch.long), score=b.score * 0.999)).any()


def test_everything_selects_all_samples() -> None:
    assert everything(pack([rollout_of([0, 0, NAN])])).tolist() == [True] * 3


@pytest.mark.parametrize("filter", [mixed_scores, mixed_outcomes, mixed_groups])
def test_scored_answers_are_mixed_if_their_scores_differ(filter: Any) -> None:
    b = pack([rollout_of([0.5, 0.25, NAN])])
    b = b.having(outcome=torch.tensor([Outcome.scored, Outcome.scored, Outcome.unverifiable]))
    assert filter(b).all() and not filter(b.having(score=torch.full_like(b.score, 0.5))).any()
    assert not filter(b.take([0, 2])).any() and not filter(b.take([2])).any()


@pytest.mark.parametrize("filter", [not_all_correct, correct_only])
def test_filters_by_outcome_refuse_scores(filter: Any) -> None:
    b = pack([rollout_of([0.5, 0.25])])
    with pytest.raises(Usage) as error:
        filter(b.having(outcome=torch.full_like(b.outcome, int(Outcome.scored))))
    assert "--threshold" in error.value.fix and "mixed_scores" in error.value.fix


def test_mixed_groups_selects_the_groups_of_a_rollout_that_are_mixed() -> None:
    """`mixed_outcomes` selects a rollout whose groups are each of one outcome; `mixed_groups` does not."""
    rollout = rollout_of([1, 1, 0, 0, 1, 0, NAN, 1])
    groups = (0, 0, 1, 1, 2, 2, 3, 3)
    samples = tuple(replace(s, group=g) for s, g in zip(rollout.samples, groups))
    b = pack([replace(rollout, samples=samples)])
    assert mixed_outcomes(b).all()
    assert mixed_groups(b).tolist() == [False] * 4 + [True] * 2 + [False] * 2
