import pytest
import torch

from groupwise.data import Batch
from groupwise.objective import budget_mean, group_mean, sequence_mean, sequence_sum, token_mean
from tests.laws.batches import step_of

ALL = [token_mean, sequence_mean, group_mean, sequence_sum, budget_mean]


def step() -> Batch:
    """Groups [2, 1, none] and [3] and [none]: three live answers of five drawn, two live groups of three."""
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
def test_what_is_counted(aggregate: object, expected: list[float]) -> None:
    assert aggregate(step()).tolist() == pytest.approx(expected, rel=1e-15)  # type: ignore[operator]


def test_every_sample_has_its_own_budget() -> None:
    b = step().having(limit=torch.tensor([4, 8, 8, 16, 0]))
    assert budget_mean(b).tolist() == pytest.approx([1 / 20, 1 / 20, 1 / 40, 1 / 80, 1 / 80, 1 / 80])


@pytest.mark.parametrize("aggregate", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_come_in_the_precision_of_what_they_multiply(aggregate: object, dtype: torch.dtype) -> None:
    b = step().having(advantage=torch.zeros(6, dtype=dtype), logp=None, logp_old=None)
    assert aggregate(b).dtype == dtype  # type: ignore[operator]


@pytest.mark.t(6)
@pytest.mark.parametrize("aggregate", ALL)
def test_an_empty_step_has_an_empty_share(aggregate: object) -> None:
    for b in (step_of([[0, 0], [0]]), step().take([])):
        assert aggregate(b).tolist() == []  # type: ignore[operator]
