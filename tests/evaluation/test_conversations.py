"""Tests of the metrics of conversations."""

import math
from collections.abc import Mapping

import pytest

from groupwise.data import ENVIRONMENT, TEMPLATE, Draw, Prompt, ReplyWithCounts, Rollout, Sample
from groupwise.evaluation.conversation_metrics import describe_conversations


def conversation(*lengths: int, counts: Mapping[str, float], role: str = "answer") -> Sample:
    """Turns of `lengths` tokens, separated by two tokens of the environment and one of the template."""
    sample = Sample(context=(1,), stream=(0,), role=role)
    for i, n in enumerate(lengths):
        if i:
            sample = sample.insert((7, 7), ENVIRONMENT).insert((8,), TEMPLATE)
        sample = sample.with_tokens((5,) * n, (0,) * n, (-1.0,) * n)
    return sample.add_counts(counts)


def rollout(*samples: Sample, selected: bool = True) -> Rollout:
    return Rollout(Draw(0, Prompt("p", (1,)), len(samples)), samples, selected=(selected,) * len(samples))


def test_means_are_over_conversations_and_shares_over_tokens() -> None:
    one, three = conversation(4, counts={"failed": 0}), conversation(2, 3, 1, counts={"failed": 1, "calls": 4})
    note = conversation(9, 9, 9, 9, counts={"failed": 1, "calls": 9}, role="note")
    plain = conversation(50, counts={})
    metrics = describe_conversations([rollout(one, note, plain), rollout(three, selected=False)])
    assert metrics == {
        "turns/mean": 2.0,
        "turns/max": 3.0,
        "turns/environment_tokens": 6 / 16,
        "counts/calls": 2.0,
        "counts/failed": 0.5,
    }


def test_rollouts_without_conversations_have_no_metrics() -> None:
    assert describe_conversations([]) == describe_conversations([rollout(conversation(3, counts={}))]) == {}
    assert describe_conversations([rollout(conversation(3, 2, counts={}))])["turns/mean"] == 2  # turns without counts
    assert describe_conversations([rollout(conversation(counts={"failed": 1}))])["turns/environment_tokens"] == 0


@pytest.mark.parametrize("count", [math.nan, math.inf, "1", True, None])
def test_a_count_is_a_finite_number(count: object) -> None:
    with pytest.raises(ValueError, match="the count calls is"):
        ReplyWithCounts("x", calls=count)  # type: ignore[arg-type]


def test_a_fork_starts_without_counts() -> None:
    assert conversation(3, counts={"calls": 2}).add_counts({"calls": 1}).counts == {"calls": 3}
    assert conversation(3, counts={"calls": 2}).fork(1, 0).counts == {}
