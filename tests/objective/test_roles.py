"""Parts that read the role of a sample: `role_mean`, `PenaltyOfRole`, `SampleRoleMask` and `AlternatingRoleMask`."""

from dataclasses import replace

import pytest
import torch

from groupwise.data import Batch
from groupwise.methods import AlternatingRoleMask, PenaltyOfRole, SampleRoleMask, role_mean
from groupwise.objective import KL, sequence_mean
from tests.laws.batches import step_of

ROLES = ("answer", "schedule", "answer", "schedule", "answer")


def step(roles: tuple[str, ...] = ROLES) -> Batch:
    """Answers with 2, 3 and 0 tokens, schedules with 1 and 4."""
    batch = step_of([[2, 1, 3, 4], [0]])
    return batch.having(samples=tuple(replace(s, role=role) for s, role in zip(batch.samples, roles, strict=True)))


def test_each_role_has_the_share_1() -> None:
    """Live samples of a role weigh the same: two of three answers, and both schedules."""
    expected = [1 / 4] * 2 + [1 / 2] + [1 / 6] * 3 + [1 / 8] * 4
    assert role_mean(step()).tolist() == pytest.approx(expected, rel=1e-15)


def test_with_one_role_it_is_the_sequence_mean() -> None:
    one = step(("schedule",) * 5)
    assert torch.equal(role_mean(one), sequence_mean(one))
    kept = step().keep(SampleRoleMask("schedule")(step()))
    assert role_mean(kept).tolist() == pytest.approx([1 / 2] + [1 / 8] * 4, rel=1e-15)


def test_an_empty_step_has_an_empty_share() -> None:
    for empty in (step().take([]), step().take([4]), step().keep(SampleRoleMask("critique")(step()))):
        assert role_mean(empty).shape == (0,) and role_mean(empty).dtype == torch.float64


def test_a_penalty_of_a_role_is_0_for_the_others() -> None:
    whole = KL(0.1)(step())
    penalty = PenaltyOfRole("schedule", KL(0.1))(step())
    of_schedule = torch.tensor([False] * 2 + [True] + [False] * 3 + [True] * 4)
    assert torch.equal(penalty[of_schedule], whole[of_schedule]) and whole.abs().min() > 0
    assert not penalty[~of_schedule].any()
    assert PenaltyOfRole("critique", KL(0.1))(step()).abs().max() == 0


@pytest.mark.parametrize(("turn", "role"), [(0.0, "schedule"), (0.9, "schedule"), (1.0, "answer"), (1.9, "answer")])
def test_roles_take_turns(turn: float, role: str) -> None:
    turns = AlternatingRoleMask(("schedule", "answer"), active_role_index=turn)
    assert turns(step()).tolist() == SampleRoleMask(role)(step()).tolist()
    assert 0 < int(turns(step()).sum()) < step().tokens


@pytest.mark.parametrize("arguments", [((), 0.0), (("answer",), 1.0), (("answer",), -1.0)])
def test_turns_need_a_role(arguments: tuple[tuple[str, ...], float]) -> None:
    with pytest.raises(ValueError, match="needs one or more roles"):
        AlternatingRoleMask(*arguments)
