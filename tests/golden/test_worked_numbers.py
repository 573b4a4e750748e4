"""The worked numbers of the method specifications, to their printed digits."""

import math
from collections.abc import Sequence

import pytest
import torch

from groupwise.advantages import Standardised, WhitenedTokens, centred
from groupwise.data import Batch, Logp, pack, rollout_of
from groupwise.methods import OverlongPenalty, ReturnsToGo, SoftGate, leave_one_out
from groupwise.objective import (
    Clip,
    ClippedWeight,
    MaskedImportance,
    Objective,
    PowerMeanRatio,
    SequenceTruncatedImportance,
    TruncatedImportance,
    UnclippedSurrogate,
    budget_mean,
    group_mean,
    kl_k1,
    kl_k3,
    sequence_mean,
    sequence_ratio,
    sequence_ratio_per_token,
    sequence_sum,
    token_mean,
    token_ratio,
)
from tests.golden.f0 import R, f0, f64, j_and_slope, rows

S = 1.105209 / 6
F0 = {
    "grpo": (Objective(aggregate=sequence_mean), 0.041667, [0, 0.15, 0.166667, 0, -0.275]),
    "grpo by group": (Objective(aggregate=group_mean), 0.041667, [0, 0.15, 0.166667, 0, -0.275]),
    "dr_grpo, C = 4": (Objective(aggregate=budget_mean), 0.15, [0, 0.1125, 0.125, 0, -0.1375]),
    "dapo": (Objective(surrogate=Clip(0.2, 0.28)), 0.256, [0, 0.18, 0.2, 0, -0.22]),
    "gspo, 0.2": (
        Objective(surrogate=Clip(ratio=sequence_ratio), aggregate=sequence_mean),
        0.152605,
        [0.184202, 0.184202, 0.184202, 0, 0],
    ),
    "gspo-token, 0.2": (
        Objective(surrogate=Clip(ratio=sequence_ratio_per_token), aggregate=sequence_mean),
        0.152605,
        [0.184202, 0.184202, 0.184202, 0, 0],
    ),
    "gspo, 3e-4 and 4e-4": (
        Objective(surrogate=Clip(3e-4, 4e-4, ratio=sequence_ratio), aggregate=sequence_mean),
        0.00035,
        [0, 0, 0, 0, 0],
    ),
    "cispo": (Objective(surrogate=ClippedWeight(0.0, 1.28)), -0.162, [0.256, 0.18, 0.2, -0.1, -0.22]),
    "gmpo, 0.4": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(0, 0.4, 0.4)), aggregate=sequence_mean),
        0.122253,
        [0, 0.183866, 0.183866, 0, -0.214673],
    ),
    "gmpo, 0.2": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(0, 0.2, 0.2)), aggregate=sequence_mean),
        0.041524,
        [0, 0.172008, 0.172008, 0, -0.23725],
    ),
    "gmpo, unbounded": (
        Objective(surrogate=UnclippedSurrogate(PowerMeanRatio(0)), aggregate=sequence_mean),
        0.181795,
        [S, S, S, -0.741620 / 4, -0.741620 / 4],
    ),
    "sapo": (
        Objective(surrogate=SoftGate(), aggregate=sequence_mean),
        0.209835,
        [0.235004, 0.149626, 0.166667, -0.116767, -0.274243],
    ),
}


@pytest.mark.parametrize("name", F0)
def test_f0(name: str) -> None:
    objective, value, slope = F0[name]
    j, actual = j_and_slope(objective, f0())
    assert j == pytest.approx(value, abs=6e-7)
    assert actual == pytest.approx(slope, abs=6e-7)


# GRPO


def test_k3() -> None:
    b = rows([1.0] * 3, [0.0] * 3, [3], logp=[-1.0] * 3).having(measures={Logp("reference"): f64([-0.5, -1.0, -1.5])})
    assert kl_k3(b).tolist() == pytest.approx([0.148721, 0, 0.106531], abs=6e-7)


@pytest.mark.parametrize(
    "part, rewards, expected",
    [
        (Standardised(eps=0.0), [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        (Standardised(ddof=0, eps=0.0), [1, 0, 0, 0], [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        (centred, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        (centred, [1, 1, 1, 0], [0.25, 0.25, 0.25, -0.75]),
        (leave_one_out, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        (leave_one_out, [1, 1, 1, 0], [1 / 3, 1 / 3, 1 / 3, -1]),
    ],
)
def test_advantages(part: object, rewards: list[float], expected: list[float]) -> None:
    b = pack([rollout_of(rewards)])
    assert part(b.verdict_score, b).tolist() == pytest.approx(expected, abs=1e-7)  # type: ignore[operator]


def test_grpo_at_equal_policies() -> None:
    step = rows([1.0] * 5, [1, 1, 1, -1, -1], [3, 2])
    j, slope = j_and_slope(Objective(aggregate=sequence_mean), step)
    assert j == pytest.approx(0, abs=1e-15) and slope == pytest.approx([1 / 6] * 3 + [-1 / 4] * 2)


# Dr. GRPO


def test_doubling_the_budget_halves_value_and_slope() -> None:
    (j, slope), (half, halves) = (j_and_slope(Objective(aggregate=budget_mean), f0(limit)) for limit in (4, 8))
    assert half == pytest.approx(j / 2, rel=1e-15) and halves == pytest.approx([x / 2 for x in slope], rel=1e-15)


def test_equal_lengths_make_dr_grpo_with_that_budget_grpo() -> None:
    step = rows([*R, 0.7], [1, 1, 1, -1, -1, -1], [3, 3], limit=3)
    first, second = (j_and_slope(Objective(aggregate=a), step) for a in (budget_mean, sequence_mean))
    assert first[0] == pytest.approx(second[0], rel=1e-14) and first[1] == pytest.approx(second[1], rel=1e-14)


def test_a_token_of_a_long_answer_counts_as_one_of_a_short_answer_in_dr_grpo_alone() -> None:
    step = rows([1.0] * 2002, [0.5] * 2002, [2, 2000], limit=3000)
    slope = j_and_slope(Objective(aggregate=budget_mean), step)[1]
    assert slope == pytest.approx([0.5 / (2 * 3000)] * 2002, rel=1e-14)
    slope = j_and_slope(Objective(aggregate=sequence_mean), step)[1]
    assert slope[0] / slope[-1] == pytest.approx(1000)


# DAPO


def test_token_mean_is_not_a_mean_of_means() -> None:
    objective = Objective(surrogate=Clip(0.2, 0.28))
    step = objective.prepare(f0())
    assert -sum(objective(step.take([i])) for i in (0, 1)).item() == pytest.approx(0.256, abs=1e-12)
    apart = [-objective(objective.prepare(f0().take([i]))).item() for i in (0, 1)]
    assert sum(apart) / 2 == pytest.approx(0.055, abs=1e-12)


def test_two_copies_of_a_batch_have_its_loss() -> None:
    objective = Objective(surrogate=Clip(0.2, 0.28))
    both = Batch.joined([f0(), f0()])
    assert objective(objective.prepare(both)).item() == pytest.approx(-0.256, abs=1e-15)


@pytest.mark.t(31)
@pytest.mark.parametrize(
    "length, expected", [(0, 0), (16384, 0), (16385, -0.000244), (18432, -0.5), (20480, -1), (20481, -1), (40960, -1)]
)
def test_soft_overlong_punishment(length: int, expected: float) -> None:
    b = pack([rollout_of([1.0], lengths=[1], limit=20480)]).having(length=torch.tensor([length]))
    assert OverlongPenalty(4096)(b.verdict_score, b).item() - 1 == pytest.approx(expected, abs=6e-7)


# GSPO


def test_sequence_ratios() -> None:
    assert sequence_ratio(f0()).tolist() == pytest.approx([1.105209] * 3 + [0.741620] * 2, abs=6e-7)


@pytest.mark.parametrize("a, r, live", [(1, 0.7, True), (-1, 1.4, True), (1, 1.4, False), (-1, 0.7, False)])
def test_gspo_clips_a_whole_answer_on_the_side_of_its_advantage(a: float, r: float, live: bool) -> None:
    objective = Objective(surrogate=Clip(ratio=sequence_ratio), aggregate=sequence_mean)
    slope = j_and_slope(objective, rows([r] * 3, [a] * 3, [3]))[1]
    assert slope == pytest.approx([a * r / 3 if live else 0.0] * 3, abs=1e-14)


def test_a_sequence_of_one_token_has_its_tokens_ratio() -> None:
    step = rows([1.3, 0.6], [1, -1], [1, 1])
    assert sequence_ratio(step).tolist() == pytest.approx(token_ratio(step).tolist(), rel=1e-15)


@pytest.mark.parametrize("ratio", [sequence_ratio, PowerMeanRatio(0), PowerMeanRatio(2)])
def test_sequence_means_ignore_token_order(ratio: object) -> None:
    first, second = rows(R, [1] * 5, [3, 2]), rows([1.0, 1.5, 0.9, 1.1, 0.5], [1] * 5, [3, 2])
    assert ratio(first).tolist() == pytest.approx(ratio(second).tolist(), rel=1e-14)  # type: ignore[operator]


def test_gspo_depends_only_on_the_mean_log_ratio() -> None:
    mean = math.exp(sum(map(math.log, R[:3])) / 3)
    assert sequence_ratio(rows([mean] * 3, [1] * 3, [3])).tolist() == pytest.approx([1.105209] * 3, abs=6e-7)


def test_gspo_token_without_advantage_on_a_token_has_no_gradient_there() -> None:
    objective = Objective(surrogate=Clip(ratio=sequence_ratio_per_token), aggregate=sequence_mean)
    slope = j_and_slope(objective, rows(R[:3], [1, 0, 2], [3]))[1]
    assert slope == pytest.approx([1.105209 / 3, 0, 2 * 1.105209 / 3], abs=6e-7)


# REINFORCE rollout


def with_k1(k: Sequence[float], lengths: Sequence[int]) -> Batch:
    b = pack([rollout_of([x], lengths=[n]) for x, n in zip((1.0, 0.0), lengths)])
    old = f64([-1.0] * sum(lengths))
    return b.having(logp_old=old, measures={Logp("reference"): old - f64(k)})


def test_reinforce_pp() -> None:
    b = with_k1([0.1, 0, 0.2, 0.05, -0.05], [3, 2])
    returns = ReturnsToGo(kl_coefficient=0.1)
    assert returns(b.verdict_score, b).tolist() == pytest.approx([0.97, 0.98, 0.98, 0, 0.005], abs=1e-12)
    population = WhitenedTokens(returns, ddof=0, eps=1e-8)(b.verdict_score, b).tolist()
    assert population == pytest.approx([0.8025, 0.823453, 0.823453, -1.229941, -1.219464], abs=6e-7)
    sample = WhitenedTokens(returns, ddof=1, eps=1e-8)(b.verdict_score, b).tolist()
    assert sample == pytest.approx([0.717777, 0.736518, 0.736518, -1.100092, -1.090722], abs=6e-7)


def test_whitened_tokens_lower_an_all_correct_group() -> None:
    b = pack([rollout_of([1.0, 0.0], lengths=[3, 1]), rollout_of([1.0, 1.0], lengths=[2, 2])])
    x = centred(b.verdict_score, b)
    assert x.tolist() == [0.5, -0.5, 0, 0]
    actual = WhitenedTokens(ddof=1)(x, b).tolist()
    assert actual == pytest.approx([1.06066] * 3 + [-1.767767] + [-0.353553] * 4, abs=6e-7)


def test_reinforce_pp_of_equal_lengths_without_kl_is_batch_standardisation() -> None:
    b = pack([rollout_of([x], lengths=[3]) for x in (1.0, 0.0, 0.25)])
    actual = WhitenedTokens(ReturnsToGo())(b.verdict_score, b)
    expected = (b.verdict_score - b.verdict_score.mean()) / b.verdict_score.std(correction=0)
    torch.testing.assert_close(actual, expected.repeat_interleave(3), rtol=1e-7, atol=0)


def test_rloo_weighs_all_tokens_equally() -> None:
    step = rows([1.0] * 5, [1, 1, 1, -1, -1], [3, 2])
    slope = j_and_slope(Objective(aggregate=sequence_sum), step)[1]
    assert slope == pytest.approx([0.5] * 3 + [-0.5] * 2)


# CISPO


def test_an_absolute_cap_of_5_is_a_relative_one_of_4() -> None:
    step = rows([7.0, 4.9, 5.1], [1] * 3, [3], logp=[-1.0] * 3)
    weights = (-ClippedWeight(0.0, 5.0)(step)).tolist()
    assert weights == pytest.approx([5.0, 4.9, 5.0], rel=1e-14)
    assert weights == pytest.approx((1 + f64([6.0, 3.9, 4.1]).clamp(max=4)).tolist(), rel=1e-14)


def test_cispo_is_bounded_and_keeps_the_gradient_that_dapo_drops() -> None:
    step = rows([1e6, 1.5, 1.1], [-1, 1, 1], [3])
    slope = j_and_slope(Objective(surrogate=ClippedWeight(0.0, 1.28)), step)[1]
    assert slope == pytest.approx([-1.28 / 3, 1.28 / 3, 1.1 / 3], rel=1e-12)
    slope = j_and_slope(Objective(surrogate=Clip(0.2, 0.28)), step)[1]
    assert slope == pytest.approx([-1e6 / 3, 0, 1.1 / 3], rel=1e-9)


def test_a_token_clipped_in_one_update_learns_in_the_next() -> None:
    objective = Objective(surrogate=ClippedWeight(0.0, 1.28))
    step = rows([1.5, 1.0], [1, 1], [2])
    further = step.having(logp=(step.logp.detach() + 0.1).requires_grad_())
    assert [j_and_slope(objective, s)[1][0] for s in (step, further)] == pytest.approx([0.64, 0.64])


# GMPO


def test_geometric_means_of_clipped_tokens() -> None:
    assert PowerMeanRatio(0, 0.4, 0.4)(f0()).tolist() == pytest.approx([1.103198] * 3 + [0.858692] * 2, abs=6e-7)


def test_a_geometric_mean_is_at_most_the_arithmetic_one() -> None:
    low, middle, high = (PowerMeanRatio(p, 0.4, 0.4)(f0()) for p in (0, 1, 2))
    assert (low < middle).all() and (middle < high).all()


def test_an_unbounded_power_mean_of_0_is_gspos_ratio() -> None:
    assert PowerMeanRatio(0)(f0()).tolist() == pytest.approx(sequence_ratio(f0()).tolist(), rel=1e-15)


# SAPO


@pytest.mark.parametrize(
    "tau, values, slopes",
    [
        (1.0, [1.075766, 1.510163, 2, 2.489837, 3.523188], [0, 0.470007, 1, 1.410022, 1.259923]),
        (1.05, [0.987524, 1.415938, 1.904762, 2.393585, 3.393917], [0, 0.934140 / 2, 1, 0.934140 * 1.5, 0.388779 * 3]),
    ],
)
def test_gate(tau: float, values: list[float], slopes: list[float]) -> None:
    r = f64([0, 0.5, 1, 1.5, 3]).requires_grad_()
    step = rows([1.0] * 5, [1] * 5, [5])
    gate = SoftGate(tau, tau, ratio=lambda _: r)(step)
    assert gate.tolist() == pytest.approx(values, abs=6e-7)
    slope = torch.autograd.grad(gate.sum(), r)[0] * r.detach()
    assert slope.tolist() == pytest.approx(slopes, abs=2e-6)


def test_the_gate_is_symmetric_and_never_overflows() -> None:
    r = f64([0.3, 1.7, math.exp(20)]).requires_grad_()
    gate = SoftGate(ratio=lambda _: r)(rows([1.0] * 3, [1] * 3, [3]))
    slope = torch.autograd.grad(gate.sum(), r)[0]
    assert slope[0].item() == pytest.approx(slope[1].item(), rel=1e-14)
    assert gate[2].item() == 4 and slope[2] == 0


def test_a_larger_negative_temperature_damps_negative_tokens_alone() -> None:
    step = rows([1.5, 0.7, 1.5, 0.7], [1, 1, -1, -1], [2, 2])
    slopes = [j_and_slope(Objective(surrogate=SoftGate(1.0, tau)), step)[1] for tau in (1.05, 1.5)]
    assert slopes[0][:2] == slopes[1][:2]
    assert all(abs(b) < abs(a) for a, b in zip(slopes[0][2:], slopes[1][2:]))


def test_a_gate_with_tau_near_0_is_unclipped() -> None:
    step = f0()
    soft = j_and_slope(Objective(surrogate=SoftGate(1e-5, 1e-5)), step)[1]
    assert soft == pytest.approx(j_and_slope(Objective(surrogate=UnclippedSurrogate()), step)[1], rel=1e-9)


# Engine and learner

RHO = [1.5, 0.9, 3.0, 0.4, 1.1]


def gapped(rho: Sequence[float] = RHO, lengths: Sequence[int] = (3, 2)) -> Batch:
    step = rows([1.2] * len(rho), [1] * len(rho), lengths)
    return step.having(logp_engine=step.logp_old - f64(rho).log())


@pytest.mark.parametrize(
    "part, expected",
    [
        (TruncatedImportance(2.0), [1.5, 0.9, 2, 0.4, 1.1]),
        (MaskedImportance(0.5, 5.0), [1.5, 0.9, 3, 0, 1.1]),
        (MaskedImportance(0.5, 2.0), [1.5, 0.9, 0, 0, 1.1]),
        (SequenceTruncatedImportance(2.0), [2, 2, 2, 0.44, 0.44]),
        (SequenceTruncatedImportance(5.0), [4.05, 4.05, 4.05, 0.44, 0.44]),
    ],
)
def test_weights(part: object, expected: list[float]) -> None:
    assert part(gapped()).tolist() == pytest.approx(expected, rel=1e-14)  # type: ignore[operator]


def test_the_gap_as_a_divergence() -> None:
    """k1 and k3 of the engine from the learner's old policy, by the estimators that metrics use."""
    b = gapped()
    b = b.having(logp=b.logp_engine, measures={Logp("reference"): b.logp_old})
    assert kl_k1(b).mean().item() == pytest.approx(-0.115547, abs=6e-7)
    assert kl_k3(b).mean().item() == pytest.approx(0.264453, abs=6e-7)


def test_the_engine_as_old_policy_includes_the_correction() -> None:
    """PPO with pi_old := mu equals the decoupled form at rho = 1. A second correction gives a different loss."""
    bypass = gapped()
    bypass = bypass.having(logp_old=bypass.logp_engine)
    plain, corrected = Objective(), Objective(weights=(TruncatedImportance(2.0),))
    assert j_and_slope(corrected, bypass) == j_and_slope(plain, bypass)
    twice = bypass.having(logp_engine=bypass.logp_engine - f64(RHO).log())
    assert j_and_slope(corrected, twice)[0] != pytest.approx(j_and_slope(plain, bypass)[0], rel=1e-3)


@pytest.mark.parametrize("length, product", [(10, 2.59), (100, 13780)])
def test_the_length_trap(length: int, product: float) -> None:
    step = gapped([1.1] * length, [length])
    assert SequenceTruncatedImportance(1e9)(step)[0].item() == pytest.approx(product, rel=2e-3)
    assert SequenceTruncatedImportance(2.0)(step)[0].item() == 2
    assert TruncatedImportance(2.0)(step)[0].item() == pytest.approx(1.1, rel=1e-14)


def test_a_token_outside_the_band_stays_in_the_divisor_and_a_masked_one_does_not() -> None:
    step = gapped()
    banded = Objective(surrogate=UnclippedSurrogate(), weights=(MaskedImportance(0.5, 2.0),), aggregate=token_mean)
    assert j_and_slope(banded, step)[0] == pytest.approx((1.5 + 0.9 + 1.1) * 1.2 / 5)
    assert j_and_slope(banded, step.keep(f64(RHO) < 2))[0] == pytest.approx((1.5 + 0.9 + 1.1) * 1.2 / 4)
