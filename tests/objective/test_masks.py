from dataclasses import dataclass

import pytest
import torch

from groupwise.advantages import Standardised
from groupwise.config.registry import fitting_names
from groupwise.data import Batch, Finish, Mask
from groupwise.methods import (
    AlternatingRoleMask,
    DepthPruning,
    InsideClip,
    MismatchRejection,
    OffPolicySequenceMask,
    SampleRoleMask,
    ViewMask,
)
from groupwise.objective import (
    Objective,
    complete,
    group_mean,
    positive_advantage,
    sequence_mean,
    token_mean,
    written_tokens,
)
from groupwise.training.loop import reads_advantage
from tests.laws.batches import step_of


@pytest.mark.t(32)
@pytest.mark.parametrize("aggregate", [token_mean, sequence_mean, group_mean])
def test_an_overlong_answer_leaves_numerator_and_divisor(aggregate: object) -> None:
    """The loss equals that of the batch without the answer. Its reward stays in its group's statistics."""
    step = step_of([[3, 5, 2], [4, 1]])
    step = step.having(finish=torch.tensor([Finish.stop, Finish.length, Finish.stop, Finish.cut, Finish.stop]))
    advantage = step.sequences.spread(Standardised()(step.reward, step))
    step = step.having(advantage=advantage)
    filtered = step.keep(complete(step))
    assert filtered.sequences.lengths.tolist() == [3, 0, 2, 0, 1] and filtered.length.tolist() == [3, 5, 2, 4, 1]
    objective = Objective(aggregate=aggregate)  # type: ignore[arg-type]
    without = step.take([0, 2, 4])
    assert objective(objective.prepare(filtered)).item() == pytest.approx(
        objective(objective.prepare(without)).item(), rel=1e-14
    )
    assert torch.equal(filtered.advantage[:3], advantage[:3])
    alone = Standardised()(without.reward, without)
    assert not torch.allclose(alone[:2], torch.stack([advantage[0], advantage[8]]))


def test_complete_keeps_answers_that_stopped() -> None:
    step = step_of([[2, 1, 1]]).having(finish=torch.tensor([Finish.stop, Finish.length, Finish.stop]))
    assert complete(step).tolist() == [True, True, False, True]


MASKS: dict[str, Mask] = {
    "ViewMask": ViewMask("sibling"), "InsideClip": InsideClip(), "SampleRoleMask": SampleRoleMask("answer"),
    "OffPolicySequenceMask": OffPolicySequenceMask(0.0),
    "DepthPruning": DepthPruning(first_pruned_step=1, pruned_step_count=1), "MismatchRejection": MismatchRejection(),
    "AlternatingRoleMask": AlternatingRoleMask(("answer",)),
    "complete": complete, "positive_advantage": positive_advantage, "written_tokens": written_tokens,
}  # fmt: skip


def test_every_mask_is_listed() -> None:
    assert sorted(MASKS) == sorted(fitting_names(Mask))


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_reads_the_advantage_if_it_declares_so(mask: Mask) -> None:
    """A mask without the declaration runs before the advantage exists."""
    step = step_of([[3, 5, 2], [4, 1]])
    kept = mask(step)
    if reads_advantage(mask):
        assert not torch.equal(mask(step.having(advantage=-step.advantage)), kept)
    else:
        for other in (None, torch.full_like(step.advantage, torch.nan)):
            assert torch.equal(mask(step.having(advantage=other)), kept)


@dataclass(frozen=True)
class Other:
    """A user's mask: the tokens that another mask removes."""

    mask: Mask

    def __call__(self, b: Batch) -> torch.Tensor:
        return ~self.mask(b)


def test_a_mask_reads_what_its_fields_read() -> None:
    assert reads_advantage(Other(Other(positive_advantage))) and not reads_advantage(Other(complete))
