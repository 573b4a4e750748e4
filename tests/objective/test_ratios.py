import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.data import Batch, name_of, unsplit_unit
from groupwise.objective import (
    MAX_LOG_RATIO,
    Clip,
    Objective,
    PowerMeanRatio,
    UnclippedSurrogate,
    sequence_mean,
    sequence_product,
    sequence_ratio,
    sequence_ratio_per_token,
    token_ratio,
)
from tests.laws.batches import step_of, steps

OF_SEQUENCES = [
    sequence_ratio,
    sequence_ratio_per_token,
    sequence_product,
    PowerMeanRatio(0),
    PowerMeanRatio(2, 0.1, 0.1),
]
ALL = [token_ratio, *OF_SEQUENCES]


@pytest.mark.parametrize("ratio", ALL, ids=name_of)
def test_log_ratios_are_clamped(ratio: object) -> None:
    step = step_of([[2, 3]])
    for gap in (50.0, -50.0, 1e4):
        far = step.having(logp_old=step.logp.detach() - gap, advantage=torch.full((5,), gap, dtype=torch.float64))
        bound = math.exp(min(max(gap, -MAX_LOG_RATIO), MAX_LOG_RATIO))
        if isinstance(ratio, PowerMeanRatio):
            bound = math.exp(min(max(gap, -MAX_LOG_RATIO, -ratio.log_low), MAX_LOG_RATIO, ratio.log_high))
        assert ratio(far).tolist() == pytest.approx([bound] * 5, rel=1e-12)  # type: ignore[operator]


def test_the_clamp_of_a_product_acts_on_the_sum() -> None:
    step = step_of([[4]])
    step = step.having(logp_old=step.logp.detach() - 6.0)
    assert sequence_product(step)[0].item() == pytest.approx(math.exp(20))


def test_names_and_coupling_of_ratios() -> None:
    names = ["sequence_ratio", "sequence_ratio_per_token", "sequence_product", "PowerMeanRatio", "PowerMeanRatio"]
    assert [name_of(r) for r in OF_SEQUENCES] == names
    assert name_of(token_ratio) == "token_ratio" and unsplit_unit(token_ratio) == "token"
    assert {unsplit_unit(Objective(surrogate=Clip(ratio=r), aggregate=sequence_mean)) for r in OF_SEQUENCES} == {
        "sequence"
    }


@pytest.mark.parametrize("ratio", OF_SEQUENCES, ids=name_of)
@settings(max_examples=30)
@given(step=steps())
def test_all_tokens_of_a_sequence_have_the_same_ratio(ratio: object, step: Batch) -> None:
    r = ratio(step)  # type: ignore[operator]
    assert torch.equal(r, step.sequences.spread(step.sequences.largest(r.detach())))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, -3.0])
def test_power_mean_refuses_advantages_that_vary_within_a_sequence(p: float) -> None:
    with pytest.raises(ValueError, match="one advantage per sequence"):
        PowerMeanRatio(p)(step_of([[3, 2]], per_token=True))
    PowerMeanRatio(p)(step_of([[3, 0, 2]]))


def test_power_mean_clips_the_side_that_ppo_clips() -> None:
    step = step_of([[3], [3], [3]])
    gap = torch.tensor([1.0, -1.0, 0.05] * 3, dtype=torch.float64)
    a = torch.tensor([1.0] * 3 + [-1.0] * 3 + [0.0] * 3, dtype=torch.float64)
    step = step.having(logp_old=step.logp.detach() - gap, advantage=a)
    near = [0.3 - 1.0 + 0.05, 1.0 - 0.2 + 0.05, 0.3 - 1.0 + 0.05]
    assert PowerMeanRatio(0, log_low=0.2, log_high=0.3)(step)[::3].tolist() == pytest.approx(
        [math.exp(x / 3) for x in near]
    )
    low, high = PowerMeanRatio(0, log_low=0.2, log_high=0.3).clipped(step)
    assert low.tolist() == [False] * 4 + [True] + [False] * 4 and high.tolist() == [True] + [False] * 8
    assert [m.tolist() for m in UnclippedSurrogate(PowerMeanRatio(0, 0.2, 0.3)).clipped(step)] == [
        low.tolist(),
        high.tolist(),
    ]
    assert not any(side.any() for side in UnclippedSurrogate().clipped(step))


@settings(max_examples=30)
@given(step=steps(), p=st.sampled_from([-2.0, -1.0, 0.5, 1.0, 3.0]))
def test_power_mean_is_the_mean_of_powers(step: Batch, p: float) -> None:
    r = token_ratio(step).detach()
    expected = step.sequences.mean(r**p) ** (1 / p)
    live = step.sequences.spread(expected)
    torch.testing.assert_close(PowerMeanRatio(p)(step).detach(), live, rtol=1e-12, atol=1e-12)


def test_power_means_increase_with_p() -> None:
    step = step_of([[5]])
    means = [PowerMeanRatio(p)(step)[0].item() for p in (-50, -1, -1e-7, 0, 1e-7, 1, 50)]
    assert means == sorted(means)
    assert means[2] == pytest.approx(means[3], rel=1e-5) and means[4] == pytest.approx(means[3], rel=1e-5)


def test_power_mean_of_far_tokens_does_not_overflow() -> None:
    step = step_of([[3]])
    far = step.having(logp_old=step.logp.detach() - torch.tensor([15.0, 0.0, -15.0], dtype=torch.float64))
    for p in (100.0, -100.0):
        r = PowerMeanRatio(p)(far)
        assert r[0].log().item() == pytest.approx(math.copysign(15, p) - math.log(3) / p, rel=1e-12)
        assert torch.isfinite(torch.autograd.grad(r.sum(), far.logp)[0]).all()


def test_negative_log_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="distances"):
        PowerMeanRatio(0, log_low=-0.4)
    with pytest.raises(ValueError, match="distances"):
        PowerMeanRatio(0, log_high=-0.4)
