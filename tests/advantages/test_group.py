"""A table of advantages, and their invariances."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.advantages import Standardised, Whitened, centred
from groupwise.data import Batch, Outcome, name_of, pack, rollout_of, unsplit_unit
from groupwise.methods import leave_one_out
from tests.laws.batches import step_of, steps

Part = Callable[[Tensor, Batch], Tensor]
GROUPED: dict[str, Part] = {
    "standardised": Standardised(),
    "standardised, population": Standardised(ddof=0),
    "centred": centred,
    "leave_one_out": leave_one_out,
}
ALL: dict[str, Part] = {**GROUPED, "whitened": Whitened()}


def advantages(part: Part, *groups: list[float]) -> list[float]:
    """Advantages of these rewards. NaN is an unverifiable answer, which is removed first."""
    batch = pack([rollout_of(group) for group in groups])
    batch = batch.take((batch.outcome != Outcome.unverifiable).nonzero().squeeze(1))
    return part(batch.verdict_score, batch).tolist()


NAN = math.nan
E6 = 1e-6
# [0, .95 x 7]: away -.83125 and .11875; squares sum to .7896875
STD = math.sqrt((0.83125**2 + 7 * 0.11875**2) / 7)
TINY = 5e-10 / (math.sqrt(2 * (5e-10) ** 2) + E6)  # [1 + 1e-9, 1]

TABLE = [
    ([1, 1, 1, 1], [0] * 4, [0] * 4, [0] * 4),
    ([0, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4),
    ([0, 0, 0, 1], [-0.25, -0.25, -0.25, 0.75], [-1 / 3, -1 / 3, -1 / 3, 1],
     [x * 0.5 / (0.5 + E6) for x in (-0.5, -0.5, -0.5, 1.5)]),
    ([0], [0], [0], [0]),
    ([1], [0], [0], [0]),
    ([0.95] * 3, [0] * 3, [0] * 3, [0] * 3),
    ([0] + [0.95] * 7, [-0.83125] + [0.11875] * 7, [-0.95] + [0.95 / 7] * 7,
     [x / (STD + E6) for x in [-0.83125] + [0.11875] * 7]),
    ([1 + 1e-9, 1], [5e-10, -5e-10], [1e-9, -1e-9], [TINY, -TINY]),
    ([NAN, 0, 0, 0, 1], [-0.25, -0.25, -0.25, 0.75], [-1 / 3, -1 / 3, -1 / 3, 1],
     [x * 0.5 / (0.5 + E6) for x in (-0.5, -0.5, -0.5, 1.5)]),
    ([NAN, 1], [0], [0], [0]),
    ([NAN, NAN, 1, 1], [0, 0], [0, 0], [0, 0]),
    ([NAN, NAN], [], [], []),
]  # fmt: skip


@pytest.mark.t(9)
@pytest.mark.parametrize("rewards, middle, others, scaled", TABLE, ids=[str(row[0]) for row in TABLE])
def test_table_of_advantages(
    rewards: list[float], middle: list[float], others: list[float], scaled: list[float]
) -> None:
    for part, expected in ((centred, middle), (leave_one_out, others), (Standardised(ddof=1, eps=1e-6), scaled)):
        assert advantages(part, rewards) == pytest.approx(expected, rel=1e-6, abs=1e-15)


@pytest.mark.t(9)
def test_the_population_standard_deviation() -> None:
    std = math.sqrt(3) / 4
    assert advantages(Standardised(ddof=0), [0, 0, 0, 1]) == pytest.approx(
        [x / (std + E6) for x in (-0.25, -0.25, -0.25, 0.75)], rel=1e-12
    )
    assert advantages(Standardised(ddof=0), [0, 0, 0, 1]) == pytest.approx([-0.577] * 3 + [1.732], abs=1e-3)


@pytest.mark.t(9)
@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
@pytest.mark.parametrize("value", [0.1, 0.95, 1 / 3, 1e9 + 0.1])
def test_equal_rewards_are_exactly_0(part: Part, value: float) -> None:
    """The float mean of seven times 0.1 is not 0.1; the remainder would be divided by eps."""
    assert advantages(part, [value] * 7) == [0.0] * 7


@pytest.mark.t(9)
@pytest.mark.parametrize("part", GROUPED.values(), ids=GROUPED)
def test_unverifiable_answers_do_not_change_other_groups(part: Part) -> None:
    assert advantages(part, [NAN, 1, 0], [0, 0, 1]) == advantages(part, [1, 0]) + advantages(part, [0, 0, 1])


@pytest.mark.t(9)
def test_a_nan_reward_stays_in_its_group() -> None:
    batch = pack([rollout_of([1, 0]), rollout_of([1, 0])])
    reward = torch.tensor([NAN, 0, 1, 0], dtype=torch.float64)
    for part in GROUPED.values():
        assert part(reward, batch)[2:].tolist() == advantages(part, [1, 0])


@pytest.mark.t(10)
@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
@settings(max_examples=30)
@given(data=st.data())
def test_permuting_samples_permutes_advantages(part: Part, data: st.DataObject) -> None:
    batch = data.draw(steps())
    order = data.draw(st.permutations(range(len(batch))))
    permuted = batch.take(order)
    expected = part(batch.reward, batch)[torch.tensor(order)]
    torch.testing.assert_close(part(permuted.reward, permuted), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.t(11)
@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
@settings(max_examples=30)
@given(batch=steps(), shift=st.floats(-100, 100))
def test_adding_a_constant_changes_nothing(part: Part, batch: Batch, shift: float) -> None:
    torch.testing.assert_close(part(batch.reward + shift, batch), part(batch.reward, batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("part", ALL.values(), ids=ALL)
@settings(max_examples=30)
@given(batch=steps(), factor=st.floats(0.1, 10))
def test_advantages_scale_with_rewards_unless_standardised(part: Part, batch: Batch, factor: float) -> None:
    expected = part(batch.reward, batch)
    if isinstance(part, Standardised | Whitened):
        part = type(part)(part.ddof, part.eps * factor)  # eps scales with what it is added to
        factor_out = 1.0
    else:
        factor_out = factor
    torch.testing.assert_close(part(batch.reward * factor, batch), expected * factor_out, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("part", GROUPED.values(), ids=GROUPED)
@settings(max_examples=30)
@given(batch=steps())
def test_a_group_sums_to_0(part: Part, batch: Batch) -> None:
    total = batch.groups.total(part(batch.reward, batch))
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-9)


@settings(max_examples=30)
@given(batch=steps())
def test_leave_one_out_is_the_difference_from_the_others(batch: Batch) -> None:
    rewards, group = batch.reward.tolist(), batch.groups.index.tolist()
    expected = []
    for i, r in enumerate(rewards):
        others = [x for j, x in enumerate(rewards) if group[j] == group[i] and j != i]
        expected.append(r - sum(others) / len(others) if others else 0.0)
    assert leave_one_out(batch.reward, batch).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=30)
@given(batch=steps())
def test_whitened_has_mean_0_and_deviation_1_over_the_iteration(batch: Batch) -> None:
    assume(len(batch) > 1)
    x = Whitened(ddof=1, eps=0.0)(batch.reward, batch)
    assert x.mean().item() == pytest.approx(0, abs=1e-9)
    assert x.std().item() == pytest.approx(1, rel=1e-9)


@pytest.mark.t(12)
def test_equal_prompts_form_separate_groups() -> None:
    first, second = rollout_of([1, 0]), rollout_of([1, 1])
    assert first.draw.prompt == second.draw.prompt
    batch = pack([first, second])
    assert batch.groups.count == 2
    assert centred(batch.verdict_score, batch).tolist() == [0.5, -0.5, 0, 0]


def test_samples_of_a_group_need_not_be_adjacent() -> None:
    batch = pack([rollout_of([1, 0]), rollout_of([1, 1, 0])]).take([3, 0, 4, 2, 1])
    assert centred(batch.verdict_score, batch).tolist() == pytest.approx([1 / 3, 0.5, -2 / 3, 1 / 3, -0.5])


def test_names_and_properties_of_advantages() -> None:
    assert [name_of(p) for p in ALL.values()] == [
        "Standardised",
        "Standardised",
        "centred",
        "leave_one_out",
        "Whitened",
    ]
    assert all(p.group_relative for p in GROUPED.values()) and not hasattr(Whitened(), "group_relative")
    assert unsplit_unit(centred) == "token"
    assert len({centred, leave_one_out, Standardised(), Standardised(1, 1e-6)}) == 3


def test_advantages_are_float64() -> None:
    batch = step_of([[2, 3]])
    assert all(part(batch.reward, batch).dtype == torch.float64 for part in ALL.values())


@pytest.mark.parametrize("part", [Standardised(eps=0.0), Standardised(ddof=0, eps=0.0), Whitened(eps=0.0)])
def test_without_eps_equal_rewards_are_0_and_not_nan(part: Part) -> None:
    assert advantages(part, [0.1] * 7) == [0.0] * 7 and advantages(part, [1.0]) == [0.0]
    assert advantages(Standardised(eps=0.0), [1, 1], [1, 0])[:2] == [0.0, 0.0]
