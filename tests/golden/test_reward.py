"""The family `reward`: the worked numbers of the specifications, and what each method claims of its advantages."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.advantages import EachStandardised, Lagrangian, Standardised, Whitened, centred
from groupwise.data import ENVIRONMENT, Batch, Finish, Logp, Outcome, Rollout, Subscore, TokenMark, pack, rollout_of
from groupwise.methods import (
    AddBrierScore,
    AddSubscoreIfCorrect,
    AddTrustedSubscore,
    AddWeightedMean,
    BrevityWhenSolved,
    BundleScoreQuantiles,
    ConsistencyBonus,
    DebiasedReward,
    DiscriminativeLoss,
    FalseRejectRate,
    FormatLength,
    ForwardCorrection,
    KLHinge,
    LagrangeMultipliers,
    OddsAdvantage,
    PrefixValueDifference,
    PromptBundleRiskAdvantage,
    ReasoningStepReturns,
    SemanticEntropyScaling,
    ShortAnswerWeights,
    TurnGroups,
    Unlikeliness,
    VirtualBestAnswer,
    drpo,
    fgrpo,
    format_length,
    gdpo,
    gigpo,
    posterior_grpo,
    trust_grpo,
)
from groupwise.objective import Objective, group_token_mean, token_mean
from groupwise.rewards import Correctness, not_all_correct
from groupwise.training.loop import compute_advantages
from tests.golden.f0 import f64, j_and_slope


def group(scores: list[float], lengths: list[int] | None = None, limit: int = 16, **parts: list[float]) -> Batch:
    return pack([rollout_of(scores, lengths=lengths, limit=limit, subscores=parts)])


def close(expected: list[float], digits: int = 4):
    return pytest.approx(expected, abs=0.6 * 10**-digits)


def test_gdpo_batch():
    rows = [([1.0, 0, 0, 1], [1.0, 1, 0, 0]), ([1.0, 1, 0, 0], [0.0, 0, 0, 1])]
    batch = pack([rollout_of(r, subscores={"style": second}) for r, second in rows])
    each = EachStandardised((("style", 0.5),), eps=1e-4)
    s = each(batch.verdict_score, batch)
    assert s.tolist() == close([1.2988, -0.4329, -1.2988, 0.4329, 0.6159, 0.6159, -1.1158, -0.1160])
    a = Whitened(ddof=1, eps=1e-4)(s, batch)
    assert a.tolist() == close([1.4309, -0.4770, -1.4309, 0.4770, 0.6786, 0.6786, -1.2293, -0.1278])
    assert gdpo().advantage[1] == Whitened(ddof=1, eps=1e-4)


@pytest.mark.parametrize(
    ("pairs", "expected"), [([(0, 0), (0, 1)], 0.7071), ([(0, 0), (1, 1)], 1.4142), ([(0, 1), (1, 1)], 0.7071)]
)
def test_gdpo_toy_pairs(pairs: list[tuple[int, int]], expected: float):
    """Three groups with the sums (0, 1), (0, 2) and (1, 2): equal for a z-score of the sum, not for GDPO."""
    batch = group([float(a) for a, _ in pairs], style=[float(b) for _, b in pairs])
    assert EachStandardised((("style", 1.0),), eps=0.0)(batch.verdict_score, batch).tolist() == close(
        [-expected, expected]
    )
    total = batch.verdict_score + batch[Subscore("style")]
    assert Standardised(eps=0.0)(total, batch).tolist() == close([-0.7071, 0.7071])


def test_missing_parts_are_left_out_of_the_statistics():
    rollout = rollout_of([0.0, 0.0, 0.0], subscores={"style": [1.0, 3.0, 7.0]})
    last = rollout.samples[2]
    samples = (*rollout.samples[:2], replace(last, verdict=replace(last.verdict, subscores={})))
    batch = pack([Rollout(rollout.draw, samples)])
    each = EachStandardised((("style", 1.0),), eps=0.0)
    assert each(batch.verdict_score, batch).tolist() == close([-0.7071, 0.7071, 0.0])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, *[0.0] * 7], [1.7638, *[-0.5040] * 7]),
        ([1.0, 1, 0, 0], [0.7303, 0.7303, -1.0954, -1.0954]),
        ([1.0] * 4, [0.0] * 4),
    ],
    ids=["one of eight", "two of four", "all"],
)
def test_virtual_best_table(scores: list[float], expected: list[float]):
    batch = group(scores)
    assert VirtualBestAnswer()(batch.verdict_score, batch).tolist() == close(expected)


def test_virtual_best_of_a_wrong_group():
    """A group of wrong answers has the advantage -1 / sqrt(G + 1); Standardised gives 0, and the filter keeps it."""
    for size in (4, 8):
        batch = group([0.0] * size)
        assert VirtualBestAnswer(eps=0.0)(batch.verdict_score, batch).tolist() == pytest.approx(
            [-1 / math.sqrt(size + 1)] * size
        )
        assert not Standardised()(batch.verdict_score, batch).any()
        assert not_all_correct(batch).all()
    assert not not_all_correct(group([1.0] * 4)).any()


def scattered(sizes: list[int], right: int) -> Batch:
    """A group whose distinct answers have these counts; the first `right` samples are correct."""
    said = [f"answer {k}" for k, n in enumerate(sizes) for _ in range(n)]
    rollout = rollout_of([1.0] * right + [0.0] * (len(said) - right))
    samples = (replace(s, verdict=replace(s.verdict, answer=text)) for s, text in zip(rollout.samples, said))
    return pack([Rollout(rollout.draw, tuple(samples))])


@pytest.mark.parametrize(
    ("sizes", "part", "expected"),
    [
        ([4, 2, 1, 1], SemanticEntropyScaling(scaling_form="linear"), 0.125),
        ([4, 2, 1, 1], SemanticEntropyScaling(), 0.2362),
        ([4, 2, 1, 1], SemanticEntropyScaling(scaling_form="focal"), 0.03125),
        ([4, 2, 1, 1], SemanticEntropyScaling(scaling_form="linear", entropy_estimator="shannon"), 0.5 * (1 - 0.58333)),
        ([1] * 8, SemanticEntropyScaling(scaling_form="linear"), 0.0),
        ([1] * 8, SemanticEntropyScaling(), 0.5 * 0.36788),
        ([8], SemanticEntropyScaling(alpha=1.0), 0.5),
        ([4, 2, 1, 1], SemanticEntropyScaling(alpha=0.0), 0.5),
    ],
    ids=str,
)
def test_semantic_entropy(sizes: list[int], part: SemanticEntropyScaling, expected: float):
    batch = scattered(sizes, right=4)
    a = part(centred(batch.verdict_score, batch), batch)
    assert a.tolist() == close([expected] * 4 + [-expected] * 4)


def test_an_answer_without_text_agrees_with_none():
    batch = group([1.0, 0.0, 0.0, 0.0])
    assert [s.verdict.answer for s in batch.samples] == [None] * 4
    a = SemanticEntropyScaling(scaling_form="linear")(centred(batch.verdict_score, batch), batch)
    assert a.tolist() == close([0.0] * 4)


def test_fgrpo_advantages():
    batch = group([1.0, 1, 0, 0], one=[1.0, 0, 1, 1], two=[0.8, 0.6, 0.4, 0.6])
    batch = replace(batch, method_states={"multipliers": {"one": 0.5, "two": 0.2}})
    part = Lagrangian(("one", "two"))
    assert part(batch.verdict_score, batch).tolist() == close([1.3610, 0.1160, -0.8610, -0.6160])
    batch = replace(batch, method_states={"multipliers": {"one": 1.2, "two": 0.0}})
    assert part(batch.verdict_score, batch).tolist() == close([1.4660, -0.9340, -0.2660, -0.2660])
    assert fgrpo().states[0][1].init() == {"chain_true": 0.0}


def test_multipliers():
    multipliers = LagrangeMultipliers((("one", 0.95), ("two", 0.8)), step_size=0.1)
    batch = group([1.0, 1, 0, 0], one=[1.0, 0, 1, 1], two=[0.8, 0.6, 0.4, 0.6])
    assert multipliers({"one": 0.5, "two": 0.2}, batch, {}) == pytest.approx({"one": 0.52, "two": 0.22})
    good = group([1.0], one=[1.0], two=[1.0])
    assert multipliers({"one": 0.0, "two": 0.01}, good, {}) == {"one": 0.0, "two": 0.0}, "never below 0"
    assert multipliers({"one": 5.0, "two": 5.0}, batch, {}) == {"one": 5.0, "two": 5.0}, "never above the most"


def likelihoods(scores: list[float], p: list[float]) -> Batch:
    """Text `R<answer>A` and these probabilities of the answer's token under the side model."""
    rollout = rollout_of(scores, lengths=[2] * len(scores))
    samples = tuple(replace(s, text="R<answer>A", token_ends=(9, 10)) for s in rollout.samples)
    logp = f64([x for q in p for x in (-3.0, math.log(q) * (1 + 1e-6))])
    return pack([Rollout(rollout.draw, samples)]).having(measures={Logp("reference"): logp})


def test_consistency_bonus():
    """The worked numbers of the specification."""
    batch = likelihoods([1.0, 1, 1, 0, 0, 0, 1, 0], [0.90, 0.97, 0.60, 0.99, 0.50, 0.40, 0.85, 0.30])
    reward = ConsistencyBonus()(batch.verdict_score + 1, batch)
    assert reward.tolist() == [2.5, 2.5, 2, 1, 1, 1, 2.5, 1]
    a = Standardised(eps=1e-4)(reward, batch)
    assert a.tolist() == close([1.0789, 1.0789, 0.4150, -0.9129, -0.9129, -0.9129, 1.0789, -0.9129])


def test_equal_answers_have_the_bonus_whatever_the_rounding_of_their_mean():
    """Probabilities at the cap, and equal graded scores, are not below their own mean, beside k other answers."""
    bonus = ConsistencyBonus()
    for n in range(1, 65):
        for k in (0, 3):
            batch = likelihoods([0.7] * n + [0.0] * k, [0.99] * n + [0.5] * k)
            reward = bonus(torch.zeros_like(batch.verdict_score), batch)
            assert reward.tolist() == [0.35] * n + [0.0] * k, (n, k)


def test_a_number_that_equals_the_mean_of_others_is_not_below_it():
    """The float64 mean of 0.1, 0.2 and 0.3 is above 0.2."""
    batch = likelihoods([0.1, 0.2, 0.3], [0.5, 0.5, 0.5])
    bonus = ConsistencyBonus(min_score=0.05)(torch.zeros_like(batch.verdict_score), batch)
    assert bonus.tolist() == [0.0, 0.1, 0.15]
    batch = likelihoods([0.7, 0.7, 0.7], [0.1, 0.2, 0.3])
    bonus = ConsistencyBonus()(torch.zeros_like(batch.verdict_score), batch)
    assert bonus.tolist() == [0.0, 0.35, 0.35]


@pytest.mark.parametrize(
    ("temperature", "weights", "value", "slopes"),
    [
        (0.1, [0.99331, 0.00669], 0.49816, [0.9933, 0.0067, -0.5050, -0.4950]),
        (1.0, [0.62246, 0.37754], 0.42399, [0.6225, 0.3775, -0.5050, -0.4950]),
        (1e9, [0.5, 0.5], 0.39950, [0.5, 0.5, -0.5050, -0.4950]),
    ],
)
def test_drpo_contrast(temperature: float, weights: list[float], value: float, slopes: list[float]):
    """Two correct answers of 2,048 and 6,144 of 8,192 tokens, and two wrong ones, each with one trained token."""
    batch = group([1.0, 1.0, 0.0, 0.0], lengths=[1] * 4, limit=8192)
    batch = replace(batch, length=torch.tensor([2048, 6144, 100, 100]))
    a = ShortAnswerWeights(temperature)(batch.verdict_score, batch)
    assert a.tolist() == close([*weights, -1.0, -1.0], 5)
    step = batch.having(logp=f64([-0.5, -0.7, -0.9, -1.1]).requires_grad_(), advantage=a)
    j, slope = j_and_slope(Objective(surrogate=DiscriminativeLoss(), aggregate=group_token_mean), step)
    assert j == pytest.approx(value, abs=6e-6)
    assert slope == close(slopes)
    assert sum(slope) == pytest.approx(0, abs=1e-12)


def test_drpo_has_no_term_for_equal_groups():
    batch = pack([rollout_of([1.0, 1.0], lengths=[2, 1]), rollout_of([0.0, 0.0], lengths=[1, 2])])
    step = compute_advantages(batch, drpo())
    step = step.having(logp=f64([-0.5] * 6).requires_grad_(), logp_old=f64([-0.5] * 6))
    j, slope = j_and_slope(drpo().objective, step)
    assert (j, slope) == (0.0, [0.0] * 6)


def test_kl_hinge():
    """Inside the region there is no gradient; at a KL of 3e-4 the factor is 1000 (3e-4 - 1e-4) = 0.2."""
    for drift, factor in ((5e-5, 0.0), (3e-4, 0.2)):
        step = group([1.0], lengths=[4]).having(logp_old=f64([-1.0] * 4), advantage=f64([0.0] * 4))
        step = step.having(logp=f64([-1.0 - drift] * 4).requires_grad_())
        _, slope = j_and_slope(Objective(penalties=(KLHinge(),)), step)
        assert slope == pytest.approx([factor / 4] * 4, abs=1e-9)


def test_brevity_when_solved():
    lengths, rows = [100, 200, 300, 400], ([1.0] * 4, [1.0, 1, 1, 0], [1.0, 0, 0, 0], [0.0] * 4)
    batch = pack([rollout_of(list(r), lengths=lengths, limit=400) for r in rows])
    reward = BrevityWhenSolved(top_group_fraction=0.5)(Correctness()(batch.verdict_score, batch), batch)
    assert reward[:8].tolist() == close([0.9523, 0.9191, 0.8809, 0.8477, 0.9462, 0.9000, 0.8538, 0])
    assert reward[8:].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    a = Standardised()(reward, batch)
    assert a[:8].tolist() == close([1.1503, 0.4204, -0.4204, -1.1503, 0.6006, 0.4983, 0.3959, -1.4948])
    assert torch.equal(BrevityWhenSolved(top_group_fraction=0.0)(batch.verdict_score, batch), batch.verdict_score)


def test_risk_table():
    part, scores = PromptBundleRiskAdvantage(shift_to_nonpositive=True, eps=0.0), f64([0, 1, 2, 3, 4, 5])
    low, high = torch.full_like(scores, 2.0), torch.full_like(scores, 4.0)
    # The worked table divides by (mix + 1) = 2.5, as the code does, with the printed values before it.
    expected = f64([-7.3333, -4.3333, -1.3333, -0.6667, 0, 0])
    assert part.risk(scores, low, high).tolist() == close(expected.tolist())
    plain = replace(part, shift_to_nonpositive=False).risk(scores, low, high)
    assert plain.tolist() == close([-6, -3, 0, 0.6667, 1.3333, 1.3333])


def test_tracked_quantile():
    scores = [0.0, 1, 2, 3, 4, 5, 3, 1]
    batch = pack([rollout_of(scores)])
    batch = batch.having(reward=batch.verdict_score)
    tracker = BundleScoreQuantiles(prompts_per_bundle=1)
    start = tracker(tracker.init(), batch, {})
    assert len(start) == 19
    moved = tracker([2.0] * 19, batch, {})
    assert moved[3] == pytest.approx(1.9825), "the level 0.2"


def test_sum_mean_split():
    """One draw of five prompts: shares .5, -.2, .1, -.1, .7 of its advantage."""
    part = PromptBundleRiskAdvantage()
    means, r = [0.5, 0.2, 0.9, 0.1, 0.3], [1.0, 0, 1, 0, 1]
    rows = [[x, *[(10 * m - x) / 9] * 9] for m, x in zip(means, r)]
    batch = replace(pack([rollout_of(row) for row in rows]), method_states={"quantiles": [k / 2 for k in range(19)]})
    a = part(batch.verdict_score, batch)
    first = a[[0, 10, 20, 30, 40]]
    total = first.sum()
    assert (first / total).tolist() == close([0.5, -0.2, 0.1, -0.1, 0.7], 6)
    total = a.reshape(5, 10).sum(0)
    equal_parts = replace(part, answer_weighting="uniform")(batch.verdict_score, batch)[:10]
    assert total.tolist() == pytest.approx(equal_parts.tolist()), "a draw's shares add up to its advantage"


def test_bundles_use_tracked_quantiles():
    batch = pack([rollout_of([1.0, 0, 0, 1]), rollout_of([1.0, 1, 0, 0])])
    batch = batch.having(reward=batch.verdict_score)
    own, tracked = (
        PromptBundleRiskAdvantage(prompts_per_bundle=2)(batch.verdict_score, replace(batch, method_states=m))
        for m in ({}, {"quantiles": [0.5] * 19})
    )
    assert own.tolist() != tracked.tolist()


def worded(words: list[str], scores: list[float]) -> Batch:
    """Answers of one-letter tokens."""
    rollout = rollout_of(scores, lengths=[len(w) for w in words])
    samples = tuple(replace(s, tokens=tuple(map(ord, w))) for s, w in zip(rollout.samples, words))
    return pack([Rollout(rollout.draw, samples)])


def test_branch_difference():
    batch = worded(["abX", "abY", "acZ", "dWW"], [1.0, 0, 1, 0])
    x = Standardised(ddof=0, eps=0.0)(batch.verdict_score, batch)
    a = PrefixValueDifference()(x, batch)
    expected = [1.3333, 0.6667, 2, -0.6667, -1.3333, -2, 1.3333, 1.6667, 1, -2, -1, -1]
    assert a.tolist() == close(expected)
    differences = a - batch.sequences.spread(x)
    assert batch.sequences.total(differences).tolist() == pytest.approx(x.tolist()), "the differences telescope"
    apart = PrefixValueDifference(include_first_token=False)(x, worded(["ab", "cd", "ef", "gh"], [1.0, 0, 1, 0]))
    assert apart.tolist() == [1, 1, -1, -1, 1, 1, -1, -1], "without a shared prefix it is the group's z-score"


def test_branch_difference_keeps_groups_apart():
    batch = Batch.joined([worded(["ab", "ac"], [1.0, 0]), worded(["ab", "ac"], [0.0, 0])])
    a = PrefixValueDifference()(batch.verdict_score, batch)
    assert a[4:].tolist() == [0.0] * 4


def test_unlikeliness_table():
    """Four answers of one token each with log-probs -.2, -.5, -.3, -.9."""
    logp = f64([-0.2, -0.5, -0.3, -0.9])
    batch = group([1.0, 1, 0, 1], lengths=[1] * 4).having(logp_old=logp)
    reward = Unlikeliness()(batch.verdict_score, batch)
    assert reward.tolist() == [0.8125, 0.9375, 0, 1]
    assert Standardised()(reward, batch).tolist() == close([0.2689, 0.5377, -1.4788, 0.6722])
    solved = group([1.0] * 4, lengths=[1] * 4).having(logp_old=logp)
    a = Standardised()(Unlikeliness()(solved.verdict_score, solved), solved)
    assert a.tolist() == close([-1.1619, 0.3873, -0.3873, 1.1619]), "without a filter, likely answers are pushed down"


def test_unlikeliness_ranks_within_groups():
    two = pack([rollout_of([1.0, 1.0], lengths=[1, 1]), rollout_of([1.0, 1.0], lengths=[2, 1])])
    two = two.having(logp_old=f64([-9.0, -8.0, -0.2, -0.4, -0.1]))
    assert Unlikeliness()(two.verdict_score, two).tolist() == [1, 0.875, 1, 0.875]


def test_debiased_reward_is_exact():
    """E[corrected | true outcome] is the true outcome, for both outcomes."""
    part, accepts, rejects = DebiasedReward(0.1, 0.2), 0.1, 0.2
    batch = group([1.0, 0.0])
    accepted, rejected = part(batch.verdict_score, batch).tolist()
    assert (accepted, rejected) == close([1.285714, -0.142857], 6)
    assert (1 - rejects) * accepted + rejects * rejected == pytest.approx(1)
    assert accepts * accepted + (1 - accepts) * rejected == pytest.approx(0, abs=1e-12)


def test_forward_correction_is_parallel():
    """A two-armed bandit: the expected gradient is the clean one times 1 - accepts - rejects."""
    accepts, rejects = 0.1, 0.2
    batch = replace(group([1.0, 0.0]), method_states={"rejects": rejects})
    accepted, rejected = ForwardCorrection()(batch.verdict_score, batch).tolist()
    assert (accepted, rejected) == pytest.approx((0.2, -0.8))
    p = 0.3  # of the correct arm; d log p / d logit is 1 - p for it and -p for the other
    right = (1 - rejects) * accepted + rejects * rejected
    wrong = accepts * accepted + (1 - accepts) * rejected
    expected = p * right * (1 - p) + (1 - p) * wrong * -p
    assert expected == pytest.approx((1 - accepts - rejects) * p * (1 - p))


def test_group_baselines_cancel_the_corrections():
    """Why neither correction has a group baseline after it."""
    batch = replace(group([1.0, 0, 0, 1, 0, 0, 0, 0]), method_states={"rejects": 0.2})
    plain = Standardised()(batch.verdict_score, batch)
    for corrected in (
        DebiasedReward(0.1, 0.2)(batch.verdict_score, batch),
        ForwardCorrection()(batch.verdict_score, batch),
    ):
        torch.testing.assert_close(Standardised()(corrected, batch), plain, rtol=0, atol=1e-5)
    assert plain[[0, 1]].tolist() == close([1.6202, -0.5401])


def test_rejection_rate():
    """40 of 64 answers rejected, 20 of them appealed, 5 overturned."""
    appealed, overturned = [0.0] * 44 + [1.0] * 20, [0.0] * 59 + [1.0] * 5
    batch = group([1.0] * 24 + [0.0] * 40, appealed=appealed, overturned=overturned)
    assert FalseRejectRate(ema_decay=0.0)(0.1, batch, {}) == pytest.approx(10 / 34)
    assert FalseRejectRate()(0.1, batch, {}) == pytest.approx(0.9 * 0.1 + 0.1 * 10 / 34)
    assert FalseRejectRate()(0.1, group([1.0, 0.0]), {}) == 0.1, "without appeals the rate stays"


def test_trust_table():
    batch = group([1.0, 1, 0, 0], thinking=[0.3, 0.5, 0.9, 0.7])
    for alpha, reward, advantage in (
        (0.3, [1.0603, 1.1005, 0.1810, 0.1408], [0.8274, 0.9030, -0.8274, -0.9030]),
        (0.3 * math.exp(-1), [1.0222, 1.0370, 0.0666, 0.0518], [0.8527, 0.8791, -0.8527, -0.8791]),
    ):
        actual = AddTrustedSubscore("thinking", alpha)(batch.verdict_score, batch)
        assert actual.tolist() == close(reward)
        assert Standardised()(actual, batch).tolist() == close(advantage)
    trusted = group([0.0, 0, 1, 1], thinking=[0.3, 0.5, 0.9, 0.7])
    assert AddTrustedSubscore("thinking")(trusted.verdict_score, trusted).tolist() == close([0.09, 0.15, 1.27, 1.21])
    assert trust_grpo().schedules[0][0] == "shaping.1.alpha"


def test_trust_goes_by_the_reward_so_far():
    """A verifier may score by something else than the outcome: here every score is below the threshold."""
    batch = group([0.0, 0.0, 0.4, 0.4], thinking=[0.9, 0.7, 0.3, 0.5])
    outcomes = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    trust = math.exp(0.4 - 0.8)
    assert AddTrustedSubscore("thinking")(outcomes, batch).tolist() == pytest.approx(
        [0.3 * trust * 0.9, 0.3 * trust * 0.7, 1 + 0.3 * trust * 0.3, 1 + 0.3 * trust * 0.5]
    )


def test_posterior_table():
    batch = group([1.0, 1, 0, 0], format=[1.0, 1, 1, 0], thinking=[0.9, 0.4, 0.95, 0.8])
    for gated, reward, advantage in (
        (True, [2.9, 2.4, 1, 0], [1.0018, 0.6238, -0.4348, -1.1909]),
        (False, [2.9, 2.4, 1.95, 0.8], [0.9898, 0.4322, -0.0697, -1.3523]),
    ):
        method = posterior_grpo(subscore="thinking", format_subscore="format", gated=gated)
        step = compute_advantages(batch, method)
        assert step.reward.tolist() == close(reward)
        assert step.advantage[::2].tolist() == close(advantage)


def test_a_wrong_answer_gains_nothing_by_its_part():
    for thinking in (0.0, 1.0):
        batch = group([1.0, 0.0], thinking=[0.5, thinking])
        assert AddSubscoreIfCorrect("thinking")(batch.verdict_score, batch).tolist() == [1.5, 0.0]


HEADS = {"polite": [0.9, 0.7, 0.8, 0.2], "meaning": [0.8, 0.9, 0.6, 0.3],
         "action": [0.5, 0.9, 0.4, 0.9], "safe": [1.0, 0.2, 0.9, 0.1]}  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "reward", "advantage"),
    [
        ((0.25,) * 4, [0.8, 0.675, 0.675, 0.375], [0.9338, 0.2421, 0.2421, -1.4180]),
        ((0.1, 0.2, 0.2, 0.5), [0.85, 0.53, 0.73, 0.31], [1.0344, -0.3166, 0.5277, -1.2455]),
    ],
)
def test_weighted_mean_table(weights: tuple[float, ...], reward: list[float], advantage: list[float]):
    batch = group([0.0] * 4, **HEADS)
    actual = AddWeightedMean(tuple(zip(HEADS, weights)))(batch.verdict_score, batch)
    assert actual.tolist() == close(reward)
    assert Standardised()(actual, batch).tolist() == close(advantage)


def test_calibration():
    batch = group([1.0, 0.0], confidence=[0.9, 0.9])
    assert AddBrierScore("confidence", 1.0)(batch.verdict_score, batch).tolist() == close([1.99, 0.19])


def test_format_length_table():
    lengths = [0, 768, 1536, 2304, 3072]
    batch = group([0.0] * 5, lengths=[0, 1, 1, 1, 1], limit=3072)
    batch = replace(batch, length=torch.tensor(lengths))
    curve = FormatLength()(batch.verdict_score, batch) - 1
    assert curve.tolist() == close([0, 0.75, 1, 0.5, -1])
    silent = replace(batch, outcome=torch.full_like(batch.outcome, Outcome.malformed))
    silent = replace(silent, length=torch.tensor([0, 1000, 1536, 2700, 3072]))
    assert FormatLength()(silent.verdict_score, silent).tolist() == close([0, 0, 0, -0.14856, -1], 5)
    thought = group([0.0, 0.0], lengths=[1, 1], limit=3072, think=[1.0, 0.0])
    thought = replace(thought, length=torch.tensor([1536, 768]))
    assert FormatLength(think_subscore="think")(thought.verdict_score, thought).tolist() == close([2.0, 1.25])


def test_format_length_reads_no_label():
    right, wrong = (compute_advantages(group([s, 0.0], lengths=[3, 5]), format_length()) for s in (1.0, 0.0))
    assert torch.equal(right.advantage, wrong.advantage)


@pytest.mark.parametrize(
    ("p", "exponents", "expected"),
    [
        (1, (0.5, 0.5), (2.6458, -0.3780)), (1, (1, 0.5), (7, -0.3780)), (1, (0.5, 1), (2.6458, -0.1429)),
        (1, (0, 0), (1, -1)), (7, (0.5, 0.5), (0.3780, -2.6458)), (7, (1, 0.5), (0.1429, -2.6458)),
        (7, (0.5, 1), (0.3780, -7)),
    ],
)  # fmt: skip
def test_odds_table(p: int, exponents: tuple[float, float], expected: tuple[float, float]):
    """p of eight answers are correct."""
    batch = group([1.0] * p + [0.0] * (8 - p))
    a = OddsAdvantage(*exponents)(batch.verdict_score, batch)
    assert a[[0, 7]].tolist() == close(list(expected))
    if sum(exponents) == 1:
        assert float(a.sum()) == pytest.approx(0, abs=1e-12)


def test_odds_of_equal_groups():
    for scores in ([1.0] * 4, [0.0] * 4):
        batch = group(scores)
        assert not OddsAdvantage()(batch.verdict_score, batch).any()


def conversations(observations: list[list[int]], scores: list[float]) -> Batch:
    """Conversations whose turns are one token, after observations of one token; the first turn follows the prompt."""
    rollout = rollout_of(scores, lengths=[1] * len(scores))
    samples = []
    for sample, heard in zip(rollout.samples, observations):
        tokens, origin = [9], [0]
        for token in heard:
            tokens += [token, 9]
            origin += [ENVIRONMENT, 0]
        logp = tuple(math.nan if o else -1.0 for o in origin)
        samples.append(replace(sample, tokens=tuple(tokens), origin=tuple(origin), logp=logp, finish=Finish.stop))
    batch = pack([Rollout(rollout.draw, tuple(samples))])
    return batch.having(reward=batch.verdict_score)


def test_turn_groups():
    """Two of three conversations hear the same after their first turn: that turn has a z-score of its own."""
    batch = conversations([[1], [1], [2]], [1.0, 0.0, 0.0])
    x = centred(batch.verdict_score, batch)
    a = TurnGroups(omega=1.0, gamma=0.5, divide_by_std=False)(x, batch)
    first = f64([0.5, 0, 0])  # the discounted rewards of the first turns
    expected = [2 / 3 + 0.5 - 1 / 6, 2 / 3 + 0.5, -1 / 3 - 1 / 6, -1 / 3 - 0.5, -1 / 3 - 1 / 6, -1 / 3]
    assert float(first.mean()) == pytest.approx(1 / 6)
    assert a.tolist() == pytest.approx(expected)
    assert TurnGroups(omega=0.0)(x, batch).tolist() == pytest.approx(batch.sequences.spread(x).tolist())


def test_gigpo_weighs_turns_the_same():
    """A turn has one share, in a long conversation or a short one, in a large group or a small one."""
    batches = conversations([[1], [1, 2], [2]], [1.0, 0.0, 0.0]), group([1.0, 0.0], [3, 1])
    step = Batch.joined([b.having(reward=b.verdict_score, advantage=torch.zeros(b.tokens)) for b in batches])
    share = gigpo().objective.aggregate(step)
    assert share.tolist() == pytest.approx([1 / 9] * 7 + [1 / 27] * 3 + [1 / 9])


def test_step_returns():
    """Two answers with two marked steps each: rewards 1, 0 and 1, 1, standardised over all four steps."""
    batch = group([1.0, 1.0], lengths=[3, 2])
    marks = f64([1, math.nan, 0, 1, 1])
    batch = batch.having(measures={TokenMark("steps"): marks})
    z = (np.array([1, 0, 1, 1]) - 0.75) / 0.5
    expected = [z[0] + z[1], z[1], z[1], z[2] + z[3], z[3]]
    assert ReasoningStepReturns(eps=0.0)(batch.verdict_score, batch).tolist() == pytest.approx(expected)
    assert ReasoningStepReturns(eps=0.0, outcome_weight=2.0)(batch.verdict_score, batch).tolist() == pytest.approx(
        [x + 2 for x in expected]
    )


def test_permuting_answers_permutes_advantages():
    """No part of this family depends on the order of answers in a group."""
    scores, lengths = [1.0, 0.0, 1.0, 0.0], [4, 3, 2, 1]
    parts = {"chain_true": [0.2, 0.9, 0.5, 0.4]}
    for method in (gdpo(), fgrpo(), drpo(), trust_grpo(), posterior_grpo(), format_length()):
        order = [2, 0, 3, 1]
        batch = replace(group(scores, lengths, **parts), method_states={n: m.init() for n, m in method.states})
        logp = torch.linspace(-1, -0.1, batch.tokens, dtype=torch.float64)
        batch = batch.having(logp_old=logp)
        plain = compute_advantages(batch, method)
        moved = compute_advantages(batch.take(order), method)
        per_sample = plain.sequences.mean(plain.advantage)
        torch.testing.assert_close(moved.sequences.mean(moved.advantage), per_sample[order], rtol=1e-12, atol=1e-12)


def test_token_mean_is_the_divisor_of_the_penalty():
    """DRPO's contrast is divided by groups and tokens of a group, its KL by the tokens of the step."""
    assert drpo().objective.aggregate is token_mean
    step = pack([rollout_of([1.0, 0.0], lengths=[3, 1]), rollout_of([1.0, 0.0], lengths=[1, 1])])
    step = step.having(advantage=f64([1.0] * 6), logp_old=f64([0.0] * 6))
    prepared = drpo().objective.prepare(step)
    share = (prepared.loss_share * prepared.weight).tolist()
    assert share == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)


def test_every_pair_of_lengths_keeps_brevity_shares_finite():
    for lengths in itertools.product((1, 16), repeat=2):
        batch = group([1.0, 0.0], list(lengths))
        assert ShortAnswerWeights(1e-3)(batch.verdict_score, batch).tolist() == [1.0, -1.0]
