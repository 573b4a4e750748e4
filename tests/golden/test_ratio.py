"""The family `ratio`: the worked numbers of the specifications, and what each method claims of its gradient."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.data import Batch, Entropy, pack, rollout_of
from groupwise.methods import (
    ElasticScale,
    GammaShapedWeight,
    LogClip,
    LogRatioAdvantageFit,
    MismatchRejection,
    MixedClip,
    NormalisedWeight,
    OffPolicySequenceMask,
    ScheduleInput,
    ctpo,
    dhpo,
    dispo,
    etr,
    gspo,
    holder_po,
    luspo,
    mdpo,
    prefix_ratio,
    train_inference_mismatch,
)
from groupwise.objective import (
    Clip,
    ClippedWeight,
    GatedSurrogate,
    GeometricMaskedImportance,
    MaskedImportance,
    MaxNormalisedEntropyScale,
    Objective,
    PowerMeanRatio,
    ScaledClip,
    SentenceEntropyClipScale,
    SentenceRatio,
    SentenceSplitter,
    SequenceMaskedImportance,
    SequenceTruncatedImportance,
    TruncatedImportance,
    UnclippedSurrogate,
    group_mean,
    nothing,
    positive_advantage,
    sequence_mean,
    sequence_ratio_per_token,
    token_mean,
    token_ratio,
)
from tests.golden.f0 import f0, f64, j_and_slope, rows


def routed(right: tuple[float, float], wrong: tuple[float, float]) -> Objective:
    surrogate = GatedSurrogate(positive_advantage, ClippedWeight(*right), ClippedWeight(*wrong))
    return Objective(surrogate=surrogate, aggregate=token_mean)


def mixed(mix: float, form: str = "joint") -> Objective:
    sequence = Clip(0.2, 0.2, sequence_ratio_per_token)
    return Objective(surrogate=MixedClip(Clip(), sequence, mix, form), aggregate=sequence_mean)


def holder(p: float) -> Objective:
    return Objective(surrogate=Clip(0.2, 0.2, PowerMeanRatio(p)), aggregate=sequence_mean)


def holder_tokens(p: float) -> Objective:
    mean = PowerMeanRatio(p, log_low=-math.log(0.8), log_high=math.log(1.2))
    return Objective(surrogate=UnclippedSurrogate(mean), aggregate=sequence_mean)


WORKED = {
    "dispo": (routed((0.95, 1.2), (0.2, 5.0)), -0.164, [0.24, 0.19, 0.2, -0.1, -0.22]),
    "dispo, tight": (routed((0.95, 1.2), (0.9, 1.05)), -0.071, [0.24, 0.19, 0.2, -0.18, -0.21]),
    "etr": (Objective(surrogate=ScaledClip(range_scale=ElasticScale()), aggregate=group_mean), 0.0625,
            [0, 0.15, 0.166667, 0, -0.275]),
    "dhpo, 0.2": (mixed(0.5), 0.097136, [0.092101, 0.167101, 0.175434, 0, -0.1375]),
    "dhpo, separate": (mixed(0.5, "separate"), 0.097136, [0.092101, 0.167101, 0.175434, 0, -0.1375]),
    "ctpo": (Objective(surrogate=LogClip()), 0.254887, [0, 0, 0, 0, 0]),
    "holder_po, p = 2": (holder(2), 0.154464, [0.322351, 0.116046, 0.143267, -0.073151, -0.354049]),
    "holder_po, p = 0": (holder(0), 0.152605, [0.184202, 0.184202, 0.184202, 0, 0]),
    "holder_po, p = -2": (holder(-2), 0.129107, [0.087778, 0.243828, 0.197501, 0, 0]),
    "holder_po, tokens, p = 1": (holder_tokens(1), 0.041667, [0, 0.15, 0.166667, 0, -0.275]),
    "holder_po, tokens, p = 0": (holder_tokens(0), 0.043951, [0, 0.170998, 0.170998, 0, -0.234521]),
    "holder_po, tokens, p = 2": (holder_tokens(2), 0.039532, [0, 0.129704, 0.160128, 0, -0.314525]),
    "holder_po, tokens, p = -2": (holder_tokens(-2), 0.048533, [0, 0.213287, 0.172762, 0, -0.158267]),
}  # fmt: skip


def graded_f0() -> Batch:
    """F0 with verdicts: the first answer is correct, so the pass rate is one half."""
    graded = pack([rollout_of([1.0, 0.0], lengths=[3, 2], limit=4)])
    plain = f0()
    return graded.having(logp=plain.logp, logp_old=plain.logp_old, advantage=plain.advantage)


@pytest.mark.parametrize("name", WORKED)
def test_worked_numbers(name: str):
    objective, value, slopes = WORKED[name]
    j, slope = j_and_slope(objective, graded_f0())
    assert j == pytest.approx(value, abs=1e-6)
    assert slope == pytest.approx(slopes, abs=1e-6)


def test_dispo_classes_are_independent():
    """The bounds of one class do not change the gradient of the other."""
    narrow, wide = (j_and_slope(routed((0.95, 1.2), wrong), graded_f0())[1] for wrong in ((0.9, 1.05), (0.2, 5.0)))
    assert narrow[:3] == wide[:3]
    assert narrow[3:] != wide[3:]
    assert dispo().objective.surrogate.selected_surrogate != dispo().objective.surrogate.other_surrogate


def test_elastic_scale_table():
    """Advantage, pass rate, and the width at a clip range of 0.2."""
    groups = [[1.0, 0, 0, 0], [1.0, 0], [1.0, *[0.0] * 7]]
    batch = pack([rollout_of(scores, lengths=[1] * len(scores)) for scores in groups])
    a = f64([1.732, *[-0.577] * 3, 1, -1, 2.6458, *[-0.378] * 7])
    width = 0.2 * ElasticScale()(batch.having(advantage=a))
    assert width[[0, 1, 4, 5, 6, 7]].tolist() == pytest.approx(
        [0.30735, 0.177413, 0.25, 0.25, 0.353187, 0.133494], abs=1e-6
    )
    assert ElasticScale(advantage_strength=0, pass_rate_strength=0)(batch.having(advantage=a)).tolist() == [1.0] * 14
    assert isinstance(etr().objective.surrogate, ScaledClip)


def test_dhpo_ends_are_grpo_and_gspo_token():
    for mix, single in ((1.0, Clip()), (0.0, Clip(0.2, 0.2, sequence_ratio_per_token))):
        expected = j_and_slope(Objective(surrogate=single, aggregate=sequence_mean), f0())
        value, slope = j_and_slope(mixed(mix), f0())
        assert value == pytest.approx(expected[0], abs=1e-12)
        assert slope == pytest.approx(expected[1], abs=1e-12)


def fixed(number: float) -> Callable[[Batch], Tensor]:
    """A ratio with this value, and with the gradient of a ratio."""
    return lambda b: number * (b.logp - b.logp.detach()).exp()


def test_dhpo_forms_differ():
    """r = 1.5 is above its range and s = 0.7 below: the joint minimum has no gradient, the separate one has."""

    two = Clip(0.2, 0.2, fixed(1.5)), Clip(0.2, 0.2, fixed(0.7))
    for form, value, slope in (("joint", 1.0, 0.0), ("separate", 0.95, 0.35)):
        step = rows([1.0], [1.0], [1])
        actual = j_and_slope(Objective(surrogate=MixedClip(*two, 0.5, form)), step)
        assert (actual[0], *actual[1]) == pytest.approx((value, slope))


@pytest.mark.parametrize("form", ["joint", "separate"])
def test_clipped_tokens_of_dhpo_are_those_without_a_gradient(form: Any):
    ratios, advantages = (0.5, 0.75, 0.9, 1.1, 1.25, 1.6), (1.0, -1.0)
    found = set()
    for r, s, a, mix in itertools.product(ratios, ratios, advantages, (0.4, 0.0, 1.0)):
        surrogate = MixedClip(Clip(0.2, 0.2, fixed(r)), Clip(0.3, 0.3, fixed(s)), mix, form)
        step = rows([1.0], [a], [1])
        (low,), (high,) = surrogate.clipped(step)
        assert (j_and_slope(Objective(surrogate=surrogate), step)[1][0] == 0) == bool(low | high), (r, s, a)
        assert not (low and a > 0) and not (high and a < 0)
        found.add((bool(low), bool(high)))
    assert found == {(False, False), (True, False), (False, True)}


def test_entropy_share_guides_dhpo():
    step = f0().having(measures={Entropy(): f64([2, 1, 0, 0, 0])})
    assert MaxNormalisedEntropyScale()(step).tolist() == [1, 0.5, 0, 0, 0]
    assert dhpo(entropy_guided=True).needs == {Entropy()}


def spoken(ratios: list[float], advantage: float, words: list[str], entropy: list[float]) -> Batch:
    """One answer whose tokens are these words."""
    step = rows(ratios, [advantage] * len(ratios), [len(ratios)])
    ends = tuple(itertools.accumulate(len(word) for word in words))
    samples = (replace(step.samples[0], text="".join(words), token_ends=ends),)
    return replace(step, samples=samples, measures={Entropy(): f64(entropy)})


FIVE, WORDS, H = [1.5, 0.9, 1.0, 0.5, 1.1], ["one", " two.", " three", " four", " five."], [2, 0.2, 1, 0.1, 0.3]


def test_sentence_ratios():
    step = spoken(FIVE, 1.0, WORDS, H)
    assert SentenceRatio()(step).tolist() == pytest.approx([1.161895] * 2 + [0.819321] * 3, abs=1e-6)
    value, slope = j_and_slope(Objective(surrogate=Clip(0.1, 0.1, SentenceRatio()), aggregate=sequence_mean), step)
    assert value == pytest.approx(0.931593, abs=1e-6)
    assert slope == pytest.approx([0, 0, *[0.819321 / 5] * 3], abs=1e-6)


def test_sentence_entropy_sets_the_range():
    for advantage, value, clipped in ((-1.0, -0.986980, True), (1.0, 0.956351, False)):
        step = spoken(FIVE, advantage, WORDS, H)
        assert SentenceEntropyClipScale()(step).tolist() == pytest.approx([1.5] * 2 + [0.648148] * 3, abs=1e-6)
        surrogate = ScaledClip(0.2, 0.2, SentenceEntropyClipScale(), SentenceRatio())
        j, slope = j_and_slope(Objective(surrogate=surrogate, aggregate=sequence_mean), step)
        assert j == pytest.approx(value, abs=1e-6)
        assert [s == 0 for s in slope] == [False, False, clipped, clipped, clipped]


def test_an_outlier_changes_its_own_sentence_only():
    plain, outlier = spoken(FIVE, 1.0, WORDS, H), spoken([9.0, *FIVE[1:]], 1.0, WORDS, H)
    a, b = SentenceRatio()(plain), SentenceRatio()(outlier)
    assert a[:2].tolist() != b[:2].tolist()
    assert a[2:].tolist() == pytest.approx(b[2:].tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("words", "segments"),
    [
        (["a", "b", "c"], [0, 0, 0]),
        (["a.", "b!", "c"], [0, 1, 2]),
        (["3", ".", "14", " x"], [0, 0, 0, 0]),
        (["3.", " x", "\n", "y"], [0, 1, 1, 2]),
    ],
)
def test_where_sentences_end(words: list[str], segments: list[int]):
    assert SentenceSplitter()(spoken([1.0] * len(words), 1.0, words, [1.0] * len(words))).index.tolist() == segments


def test_ctpo_example():
    gaps = [0.01, 0.03, -0.10, 0.02]
    for advantage, value, slopes in (
        (1.0, 0.988354, [0.252513, 0.260203, 0.235441, 0.240197]),
        (-1.0, -0.992318, [-0.252513, -0.260203, 0, -0.240197]),
    ):
        step = rows([math.exp(gap) for gap in gaps], [advantage] * 4, [4])
        j, slope = j_and_slope(Objective(surrogate=LogClip()), step)
        assert j == pytest.approx(value, abs=1e-6)
        assert slope == pytest.approx(slopes, abs=1e-6)


def test_ctpo_caps_a_negative_answer():
    step = rows([math.exp(0.06)], [-1.0], [1])
    assert j_and_slope(Objective(surrogate=LogClip()), step) == (pytest.approx(-math.exp(0.05)), [0.0])
    low, high = ctpo().objective.surrogate.clipped(step)
    assert (low.tolist(), high.tolist()) == ([False], [True])


def test_prefix_ratio_corrects_the_prefix():
    """Two tokens of two symbols, all sequences: with an advantage of the prefix and the token, the old policy's mean of
    `rho A grad log pi` is the current policy's, and the token ratio's is not."""
    torch.manual_seed(0)
    old, new = (torch.randn(3, 2, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    advantage = torch.randn(2, 2, 2, dtype=torch.float64)  # [first token, second token, position]
    truth, prefix, token = torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 2)
    truth, prefix, token = truth.double(), prefix.double(), token.double()
    for first, second in itertools.product(range(2), repeat=2):
        indices = ((0, first), (1 + first, second))
        a = f64([float(advantage[first, 0, 0]), float(advantage[first, second, 1])])
        step = pack([rollout_of([0.0], lengths=[2])])
        step = step.having(
            logp=torch.stack([new[p] for p in indices]), logp_old=torch.stack([old[p] for p in indices]), advantage=a
        )
        p_old, p_new = step.logp_old.sum().exp(), step.logp.sum().exp()
        corrections = {"prefix": prefix_ratio(step), "token": token_ratio(step)}
        for t, index in enumerate(indices):
            truth[index] += p_new * a[t]
            prefix[index] += p_old * corrections["prefix"][t] * a[t]
            token[index] += p_old * corrections["token"][t] * a[t]
    torch.testing.assert_close(prefix, truth, rtol=0, atol=1e-12)
    assert (token - truth).abs().max() > 0.01


def test_power_means():
    step = f0()
    for p, means in ((2, [1.163329, 0.854400]), (1, [1.133333, 0.8]), (0, [1.105209, 0.741620]),
                     (-2, [1.058213, 0.643726])):  # fmt: skip
        ratio = PowerMeanRatio(p)(step)
        assert ratio[[0, 3]].tolist() == pytest.approx(means, abs=1e-6)
    assert PowerMeanRatio(1e-5)(step)[0].item() == pytest.approx(PowerMeanRatio(0)(step)[0].item(), abs=1e-5)


def test_holder_curves():
    tables = {
        "linear": [2, 1, 0, -2, -2],
        "cosine": [2, 1.414214, 0, -2, -2],
        "cubic": [2, 0.25, 0, -2, -2],
        "power": [2, 1.75, 1, -2, -2],
    }
    for shape, table in tables.items():
        ((path, schedule),) = holder_po(shape=shape).schedules
        assert path == "objective.surrogate.ratio.p"
        assert [schedule(ScheduleInput(i)) for i in (0, 125, 250, 500, 900)] == pytest.approx(table, abs=1e-6)


def bandit(policy: Tensor) -> Batch:
    """The arms of a bandit as answers of one token, each as often as the old policy takes it: 5, 3 and 2 of 10."""
    old, advantages = f64([0.5, 0.3, 0.2]), f64([1, 0, -1])
    arms = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    step = pack([rollout_of([0.0] * 10, lengths=[1] * 10)])
    return step.having(logp=policy[arms], logp_old=old.log()[arms], advantage=advantages[arms])


def test_mirror_descent_of_a_bandit():
    """At the exact optimum of one iteration the objective is log(Z) / t and its gradient is 0."""
    weight = 2.0
    objective = replace(mdpo().objective, penalties=(replace(mdpo().objective.penalties[0], coefficient=weight),))
    z = f64([0.5, 0.3, 0.2]) * (f64([1, 0, -1]) / weight).exp()
    for probabilities, value, slopes in (
        (f64([0.5, 0.3, 0.2]), 0.3, [0.35, -0.09, -0.26]),
        (z / z.sum(), 0.439342, [0, 0, 0]),
    ):
        logits = probabilities.log().requires_grad_()
        step = bandit(logits.log_softmax(-1))
        loss = objective(objective.prepare(step))
        loss.backward()
        assert -loss.item() == pytest.approx(value, abs=1e-6)
        assert (-logits.grad).tolist() == pytest.approx(slopes, abs=1e-6)


def test_squared_form_of_a_bandit():
    """At the optimum, all residuals are the same constant, -log(Z) / t."""
    z = f64([0.5, 0.3, 0.2]) * f64([0.5, 0, -0.5]).exp()
    step = bandit((z / z.sum()).log())
    residual = -LogRatioAdvantageFit(2.0)(step)
    assert residual.sqrt().tolist() == pytest.approx([0.439342] * 10, abs=1e-6)


RHO = [1.5, 0.9, 3.0, 0.4, 1.1]


def mismatched() -> Batch:
    step = rows([1.0] * 5, [1, 1, 1, -1, -1], [3, 2])
    return step.having(logp_engine=step.logp_old - f64(RHO).log())


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (TruncatedImportance(2.0), [1.5, 0.9, 2, 0.4, 1.1]),
        (MaskedImportance(0.5, 5.0), [1.5, 0.9, 3, 0, 1.1]),
        (MaskedImportance(0.5, 2.0), [1.5, 0.9, 0, 0, 1.1]),
        (SequenceTruncatedImportance(2.0), [2, 2, 2, 0.44, 0.44]),
        (SequenceMaskedImportance(0.0, 3.0), [0, 0, 0, 0.44, 0.44]),
        (GeometricMaskedImportance(0.7, 5.0), [1.5, 0.9, 3, 0, 0]),
        (NormalisedWeight(TruncatedImportance(2.0)), [1.271186, 0.762712, 1.694915, 0.338983, 0.932203]),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, list) else "",
)
def test_weights_of_the_mismatch(weight, expected: list[float]):
    step = mismatched()
    assert weight(step).tolist() == pytest.approx(expected, abs=1e-6)
    equal = step.having(logp_engine=step.logp_old)
    assert weight(equal).tolist() == pytest.approx([1.0] * 5), "without a gap every weight is 1"


def test_effective_share_of_normalised_weights():
    assert NormalisedWeight(TruncatedImportance(2.0)).notes(mismatched()) == {
        "effective_share": pytest.approx(0.825860, abs=1e-6)
    }


@pytest.mark.parametrize(
    ("reject", "kept"),
    [
        (MismatchRejection("k1", "token", 0.5, 2.0), [True, True, False, False, True]),
        (MismatchRejection("k1", "mean", 0.5, 1.2), [False, False, False, True, True]),
        (MismatchRejection("k1", "sum", 0.4, 5.0), [True] * 5),
        (MismatchRejection("k2", "largest", cap=0.3), [False, False, False, False, False]),
        (MismatchRejection("k3", "token", cap=0.4), [True, True, False, True, True]),
        (MismatchRejection("k3", "mean", cap=0.2), [False, False, False, True, True]),
    ],
    ids=str,
)
def test_rejection(reject: MismatchRejection, kept: list[bool]):
    assert reject(mismatched()).tolist() == kept


def test_rejection_changes_the_divisor():
    """A rejected token leaves the token mean's divisor; a token of weight 0 stays in it."""
    step = mismatched()
    rejected = step.keep(MismatchRejection("k1", "token", 0.5, 2.0)(step))
    assert Objective().prepare(rejected).loss_share.tolist() == pytest.approx([1 / 3] * 3)
    weighted = Objective(weights=(MaskedImportance(0.5, 2.0),)).prepare(step)
    assert weighted.loss_share.tolist() == pytest.approx([1 / 5] * 5)


def test_off_policy_mask_keeps_positive_answers():
    step = rows([1.0] * 4, [1, 1, -1, -1], [2, 2])
    for drift, kept in ((0.05, [True] * 4), (0.2, [True, True, False, False])):
        far = step.having(logp_engine=step.logp.detach() + drift)
        assert OffPolicySequenceMask(0.1)(far).tolist() == kept
    dropped = Objective(surrogate=GatedSurrogate(OffPolicySequenceMask(0.1), Clip(), nothing))
    assert j_and_slope(dropped, far)[1] == pytest.approx([0.25, 0.25, 0, 0])


def test_corrections_are_one_change_of_grpo():
    """Each correction changes one field; the bypass takes the engine's log-probs as old ones and no weight."""
    bypass = train_inference_mismatch(correction="bypass")
    assert bypass.old_logprobs == "engine"
    assert bypass.objective.weights == ()
    with pytest.raises(ValueError, match="correct it twice"):
        replace(train_inference_mismatch(), old_logprobs="engine")


def test_geometric_filter_does_not_depend_on_length():
    """Equal tokens of rho = 1.1: the product grows with the answer, the mean does not."""
    for n in (10, 100):
        step = rows([1.0] * n, [1.0] * n, [n])
        step = step.having(logp_engine=step.logp_old - math.log(1.1))
        assert MismatchRejection("k1", "mean", 0.9, 1.2)(step).all()
        assert not MismatchRejection("k1", "sum", 0.4, 2.0)(step).any()


def test_luspo_pushes_each_token_equally_whatever_the_length():
    """At ratio 1 GSPO divides a token's gradient by the length of its answer; LUSPO does not."""
    step = rows([1.0] * 5, [1, -1, -1, -1, -1], [1, 4])
    assert j_and_slope(gspo().objective, step)[1] == pytest.approx([1 / 2, *[-1 / 8] * 4], rel=1e-12)
    assert j_and_slope(luspo().objective, step)[1] == pytest.approx([1 / 2, *[-1 / 2] * 4], rel=1e-12)


@pytest.mark.parametrize(("a", "peak"), [(1.0, 2 / 3), (-1.0, 3 / 2)])
def test_vespo_weight_is_largest_at_k_by_decay(a: float, peak: float):
    """The weight W^k exp(decay (1 - W)): 1 at W = 1, largest at k / decay, 0 at both ends, whatever the length."""

    def weight(*ratios: float) -> float:
        step = rows(ratios, [a] * len(ratios), [len(ratios)])
        return (
            j_and_slope(Objective(surrogate=GammaShapedWeight(), aggregate=sequence_mean), step)[1][0] * len(ratios) * a
        )

    assert weight(1.0) == pytest.approx(1, rel=1e-12)
    assert weight(2.0, 0.5, 1.0) == pytest.approx(1, rel=1e-12)
    assert weight(2.0, peak / 2) == pytest.approx(weight(peak), rel=1e-12)
    assert weight(peak) > max(weight(peak - 0.01), weight(peak + 0.01), 1)
    assert max(weight(1e-30), weight(1e30), weight(*[2.0] * 40)) < 1e-15


@pytest.mark.parametrize("field", ["k_positive", "decay_positive", "k_negative", "decay_negative"])
def test_gamma_weight_refuses_numbers_that_are_not_positive(field: str):
    with pytest.raises(ValueError, match="needs k and decay above 0"):
        GammaShapedWeight(**{field: 0.0})
