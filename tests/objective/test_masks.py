import pytest
import torch

from groupwise.advantages import Standardised
from groupwise.data import Finish
from groupwise.objective import Objective, complete, group_mean, sequence_mean, token_mean
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
