"""`make_plan` deals samples to steps, and steps to microbatches."""

from typing import Any

import pytest

from groupwise.data import pack, rollout_of
from groupwise.learner import make_plan


@pytest.mark.parametrize(
    ("size", "shuffle", "expected"),
    [
        (1, "prompts", [[3], [4, 5], [0, 1, 2]]),
        (2, "prompts", [[3, 4, 5], [0, 1, 2]]),
        (1, "samples", [[1, 2], [3, 4], [0, 5]]),
        (2, "samples", [[1, 2, 3, 4], [0, 5]]),
    ],
)
def test_steps_are_of_prompts_or_of_equally_many_samples(size: int, shuffle: Any, expected: list[list[int]]) -> None:
    """Three prompts with 3, 1 and 2 answers, dealt from the second on; a step has its samples in their order."""
    batch = pack([rollout_of([1.0] * n) for n in (3, 1, 2)])
    plan = make_plan(
        batch, size=size, shuffle=shuffle, permutation=lambda n: [*range(1, n), 0], microbatch_tokens=1000
    )  # fmt: skip
    assert [list(step.samples) for step in plan] == expected


def test_the_answers_of_a_group_are_not_parted_if_the_loss_compares_them() -> None:
    batch = pack([rollout_of([1.0] * n, lengths=[4] * n) for n in (3, 1)])
    plans = [
        make_plan(batch, size=2, shuffle="prompts", permutation=range, microbatch_tokens=8, unsplit_unit=unsplit_unit)
        for unsplit_unit in ("token", "group", "step")
    ]
    assert [[list(m) for m in step.microbatches] for (step,) in plans] == [
        [[0], [1], [2], [3]],
        [[0, 1, 2], [3]],
        [[0, 1, 2, 3]],
    ]
    with pytest.raises(ValueError, match="set shuffle to prompts"):
        make_plan(batch, size=2, shuffle="samples", permutation=range, microbatch_tokens=8, unsplit_unit="group")
