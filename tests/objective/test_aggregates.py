import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise import methods
from groupwise.data import Batch
from groupwise.objective import budget_mean, group_mean, sequence_mean, sequence_sum, token_mean
from tests.laws.batches import step_of

ALL = [token_mean, sequence_mean, group_mean, sequence_sum, budget_mean]


def step() -> Batch:
    """Groups of lengths [2, 1, 0], [3] and [0]: three live answers of five, two live groups of three."""
    return step_of([[2, 1, 0], [3], [0]], limit=8)


@pytest.mark.parametrize(
    "aggregate, expected",
    [
        (token_mean, [1 / 6] * 6),
        (sequence_mean, [1 / 6, 1 / 6, 1 / 3, 1 / 9, 1 / 9, 1 / 9]),
        (group_mean, [1 / 8, 1 / 8, 1 / 4, 1 / 6, 1 / 6, 1 / 6]),
        (sequence_sum, [1 / 5] * 6),
        (budget_mean, [1 / 40] * 6),
    ],
)
def test_shares_on_unequal_groups(aggregate: object, expected: list[float]) -> None:
    assert aggregate(step()).tolist() == pytest.approx(expected, rel=1e-15)  # type: ignore[operator]


@pytest.mark.parametrize("limits", [[4, 8, 8, 16, 0], [3, 3, 3, 3, 3]])
def test_budget_mean_divides_by_one_number_for_all_batches(limits: list[int]) -> None:
    """Whatever room long prompts leave, in this batch or in any part of it. Dr. GRPO's constant C."""
    b = step().having(length_limit=torch.tensor(limits), max_new_tokens=16)
    assert budget_mean(b).tolist() == pytest.approx([1 / 80] * 6, rel=1e-15)
    assert budget_mean(b.take([0])).tolist() == pytest.approx([1 / 16] * 2, rel=1e-15)


@pytest.mark.parametrize("aggregate", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_have_the_dtype_of_the_advantage(aggregate: object, dtype: torch.dtype) -> None:
    b = step().having(advantage=torch.zeros(6, dtype=dtype), logp=None, logp_old=None)
    assert aggregate(b).dtype == dtype  # type: ignore[operator]


@pytest.mark.t(6)
@pytest.mark.parametrize("aggregate", ALL)
def test_an_empty_step_has_an_empty_share(aggregate: object) -> None:
    for b in (step_of([[0, 0], [0]]), step().take([])):
        assert aggregate(b).tolist() == []  # type: ignore[operator]


@settings(max_examples=60)
@given(groups=st.integers(1, 40), members=st.integers(1, 40), longest=st.integers(1, 50), single=st.booleans())
def test_group_mean_equals_sequence_mean_to_the_bit_for_equal_groups(
    groups: int, members: int, longest: int, single: bool
) -> None:
    b = step_of([[1 + (7 * g + 3 * i) % longest for i in range(members)] for g in range(groups)])
    b = b.having(advantage=torch.zeros(b.tokens, dtype=torch.float32 if single else torch.float64))
    assert torch.equal(group_mean(b), sequence_mean(b))


@pytest.mark.parametrize("method", ["grpo", "gspo", "gspo_token", "sapo"])
def test_an_excluded_answer_does_not_change_its_groups_weight(method: str) -> None:
    """Papers average over groups: three live answers of one group have the same total share as four of another."""
    aggregate = getattr(methods, method)().objective.aggregate
    b = step_of([[2, 1, 3, 0], [3, 2, 2, 4]])
    by_group = b.groups.total(b.sequences.total(aggregate(b)))
    assert by_group.tolist() == pytest.approx([0.5, 0.5], rel=1e-15)
