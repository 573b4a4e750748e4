"""The family `contrast`: the worked numbers of the specifications, and what each method claims of its gradient."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.advantages import Standardised
from groupwise.data import (
    WRITTEN,
    Batch,
    Divergence,
    Draw,
    Entropy,
    Finish,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    pack,
    rollout_of,
)
from groupwise.methods import (
    AddBrierScore,
    BinaryClassification,
    ChecksReward,
    CorrectPrefixCuesStrategy,
    DistinctFromOtherOutcomeFilter,
    EarlyTokenCredit,
    LabelContrast,
    LogRatioZScoreFit,
    PositiveOnly,
    RecentMeanScoresCurriculum,
    RewardLevels,
    SiblingViewStrategy,
    TeacherCertainty,
    TeacherGap,
    ViewMask,
    WithSolutionAnchor,
    mixed_mean,
    popo,
    srpo,
    trpa,
    veripo,
)
from groupwise.objective import (
    Distillation,
    GatedSurrogate,
    Objective,
    PairwisePreference,
    ShapedLikelihood,
    group_token_mean,
    pair_mean,
    sequence_mean,
    token_mean,
)
from groupwise.rewards import AddSubscore, Correctness, correct_only
from groupwise.rollout.prompt_template import worded
from groupwise.training.loop import compute_advantages
from tests.golden.f0 import f64, j_and_slope
from tests.rollout.fakes import FakeEngine, NumberedTask, sampler_of, tokenizer


def answers(ratios: list[float], scores: list[float]) -> Batch:
    """A group of answers of one token each, with these log-ratios."""
    batch = pack([rollout_of(scores, lengths=[1] * len(scores))])
    new = f64([-0.7] * len(scores)).requires_grad_()
    batch = batch.having(logp=new, logp_old=new.detach() - f64(ratios), advantage=f64([0.0] * len(scores)))
    return batch.having(reward=batch.verdict_score)


S, R = [0.2, -0.1, 0.3, -0.4], [1.0, 0, 0, 1]


@pytest.mark.parametrize(
    ("surrogate", "aggregate", "value"),
    [
        (LabelContrast(), group_token_mean, 2.652132),
        (LabelContrast(loss_form="product"), group_token_mean, 2.157274),
        (BinaryClassification(), mixed_mean, 0.829936),
    ],
    ids=["real", "real, product", "real, binary"],
)
def test_worked_numbers(surrogate, aggregate, value: float):
    j, _ = j_and_slope(Objective(surrogate=surrogate, aggregate=aggregate), answers(S, R))
    assert -j == pytest.approx(value, abs=1e-6)


def test_label_slopes():
    _, slope = j_and_slope(Objective(surrogate=LabelContrast(), aggregate=group_token_mean), answers(S, R))
    assert (-np.array(slope)).tolist() == pytest.approx([-0.344119, 0.449747, 1.000931, -1.142516], abs=1e-6)


def test_label_weights_are_bounded():
    """A weight is at most 1 / tau, grows as a correct answer falls and as a wrong one rises."""
    objective = Objective(surrogate=LabelContrast(), aggregate=group_token_mean)
    last = 0.0
    for s in (2.0, 0.0, -2.0, -9.0):
        _, slope = j_and_slope(objective, answers([s, -s], [1.0, 0.0]))
        assert last < slope[0] < 1 / 0.5
        assert slope[1] == pytest.approx(-slope[0])
        last = slope[0]


def test_equal_groups_have_no_label_term_and_count():
    mixed, solved = answers(S, R), answers(S, [1.0] * 4)
    both = Batch.joined([mixed, solved])
    objective = Objective(surrogate=LabelContrast(), aggregate=group_token_mean)
    assert -j_and_slope(objective, both)[0] == pytest.approx(2.652132 / 2, abs=1e-6)
    assert j_and_slope(objective, solved)[0] == 0


@pytest.mark.parametrize(
    ("ratios", "value"), [([0.10, -0.20, 0.05, 0.05], 0.190716), ([0.2, -0.2, 0, 0], 1.8e-7), ([0.0] * 4, 0.999435)]
)
def test_regression_example(ratios: list[float], value: float):
    """Rewards 1, 0, .5, .5; the second log-ratios are an affine function of them."""
    batch = pack([rollout_of([1.0, 0, 0.5, 0.5], lengths=[1] * 4)])
    new = f64([-0.7] * 4).requires_grad_()
    a = Standardised(ddof=0, eps=1e-4)(batch.verdict_score, batch)
    batch = batch.having(logp=new, logp_old=new.detach() - f64(ratios), advantage=a)
    j, slope = j_and_slope(Objective(surrogate=LogRatioZScoreFit(), aggregate=sequence_mean), batch)
    assert -j == pytest.approx(value, abs=1e-6)
    assert np.isfinite(slope).all()
    assert any(slope), "a run starts with equal log-ratios, and moves"
    assert sum(slope) == pytest.approx(0, abs=1e-6)


def test_regression_does_not_see_scale():
    objective = Objective(surrogate=LogRatioZScoreFit(eps=0.0), aggregate=sequence_mean)
    a, b = (j_and_slope(objective, answers([k * x + 3 * (k - 1) for x in S], R))[0] for k in (1, 5))
    assert a == pytest.approx(b)


def test_preference_example():
    """Levels 1, 2, 2, 4 and d = .05, -.02, .01, -.04: five pairs."""
    batch = answers([0.0] * 4, [-1.0, -2, -2, -4])
    reference = batch.logp.detach() - f64([0.05, -0.02, 0.01, -0.04])
    batch = batch.having(measures={Logp("reference"): reference}, reward=f64([-1.0, -2, -2, -4]))
    preference = PairwisePreference(0.1, 2.5, best_reward=-1.0, token_reduction="mean")
    j, slope = j_and_slope(Objective(surrogate=preference, aggregate=pair_mean), batch)
    assert -j == pytest.approx(0.687471, abs=1e-6)
    assert slope[0] > 0 > slope[3]
    assert sum(slope) == pytest.approx(0, abs=1e-12)


def test_trpa_levels():
    batch = pack([rollout_of([1.0, 0, 0, 0], subscores={"format": [1.0, 1, 1, 0]})])
    batch = replace(batch, outcome=torch.tensor([Outcome.correct, Outcome.wrong, Outcome.malformed, Outcome.wrong]))
    assert RewardLevels("format")(batch.verdict_score, batch).tolist() == [-1, -2, -3, -4]
    assert RewardLevels()(batch.verdict_score, batch).tolist() == [-1, -2, -3, -2]
    assert trpa().needs == {Logp("reference"), Logp("policy")}


def test_dpo_is_a_preference():
    """Log-probs -40 and -55, reference -42 and -50, beta .1: the margin .7."""
    batch = pack([rollout_of([1.0, 0.0], lengths=[1, 1])])
    batch = batch.having(
        logp=f64([-40.0, -55]).requires_grad_(), logp_old=f64([-40.0, -55]), reward=batch.verdict_score
    )
    batch = batch.having(measures={Logp("reference"): f64([-42.0, -50])}, advantage=f64([0.0, 0]))
    j, _ = j_and_slope(Objective(surrogate=PairwisePreference(), aggregate=pair_mean), batch)
    assert -j == pytest.approx(0.403186, abs=1e-6)


def test_preference_at_the_reference():
    """At the start of the phase each pair has the loss ln 2, and the chosen answer rises as the rejected one falls."""
    method = veripo()
    batch = pack([rollout_of([1.0, 0.0, 1.0], lengths=[2, 2, 1], subscores={"chain_true": [1.0, 1.0, 0.0]})])
    at = f64([-1.0] * batch.tokens)
    batch = batch.having(logp=at.clone().requires_grad_(), logp_old=at, measures={Logp("reference"): at})
    j, slope = j_and_slope(method.objective, compute_advantages(batch, method))
    assert -j == pytest.approx(math.log(2))
    assert slope == pytest.approx([0.05, 0.05, -0.025, -0.025, -0.025])


def test_checks_of_answers():
    """An answer passes if it is correct, consistent, complete and not repetitive. Of two, the longer is preferred."""
    rollout = rollout_of([1.0, 1.0, 1.0, 1.0, 0.0, 1.0], lengths=[2, 4, 2, 8, 2, 2], limit=8,
                         subscores={"chain_true": [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]})  # fmt: skip
    samples = list(rollout.samples)
    samples[3] = replace(samples[3], tokens=(3, 4) * 4)
    samples[5] = replace(samples[5], finish=Finish.length)
    batch = pack([Rollout(rollout.draw, tuple(samples))])
    assert ChecksReward("chain_true")(batch.verdict_score, batch).tolist() == [1.25, 1.5, 0, 0, 0, 0]
    assert ChecksReward("chain_true", prefer_longer=False)(batch.verdict_score, batch).tolist() == [1, 1, 0, 0, 0, 0]
    assert ChecksReward(max_repeated_ngram_fraction=1.0, prefer_longer=False)(batch.verdict_score, batch).tolist() == [
        1,
        1,
        1,
        1,
        0,
        0,
    ]
    chosen = correct_only(batch) & (ChecksReward("chain_true")(batch.verdict_score, batch) == 0)
    assert chosen.tolist() == [False, False, True, True, False, True], "a rejected answer may be correct"


def test_a_step_without_pairs_has_no_gain():
    batch = answers(S, [1.0] * 4).having(measures={Logp("reference"): f64([-1.0] * 4)})
    assert j_and_slope(Objective(surrogate=PairwisePreference(), aggregate=pair_mean), batch) == (0.0, [0.0] * 4)


def test_distinct_answers():
    batch = pack([rollout_of([1.0, 1, 1, 0], subscores={"style": [0.9, 0.55, 0.8, 0.5]})])
    assert DistinctFromOtherOutcomeFilter("style")(batch).tolist() == [True, False, True, True]
    assert DistinctFromOtherOutcomeFilter("style", 0.0)(batch).all()
    assert not DistinctFromOtherOutcomeFilter("style", 1.1)(batch).any()


def test_shaped_likelihood():
    for p, value, slope in ((0.5, 0.833333, 0.277778), (0.05, 0.333333, 4.444444)):
        step = answers([0.0], [1.0])
        step = step.having(logp=f64([math.log(p)]).requires_grad_(), advantage=f64([1.0]))
        j, gradient = j_and_slope(Objective(surrogate=ShapedLikelihood()), step)
        assert (j, gradient[0] / p) == pytest.approx((value, slope), abs=1e-6)


async def sevens(prompt: Prompt, sample: Sample) -> Verdict:
    return Verdict(
        Outcome.correct if 7 in sample.tokens else Outcome.wrong, subscores={"style": float(len(sample.tokens))}
    )


def test_an_anchor_joins_a_hard_group():
    engine, row = FakeEngine(lambda request: (4,)), {"solution": tokenizer().decode_with_ends((7,))[0]}
    draw = Draw(0, Prompt("p", (5,), row=row), 2)
    rollout = asyncio.run(WithSolutionAnchor()(draw, sampler_of(engine, draw, verifier=sevens)))
    assert [s.verdict.outcome for s in rollout.samples] == [Outcome.wrong, Outcome.wrong, Outcome.correct]
    assert set(rollout.samples[2].origin) == {WRITTEN}
    batch = pack([rollout])
    a = Standardised(ddof=0, eps=0.0)(batch.verdict_score, batch)
    assert a.tolist() == pytest.approx([-0.707107, -0.707107, 1.414214], abs=1e-6)
    assert DistinctFromOtherOutcomeFilter("style", 5.0)(batch).tolist() == [True, True, True], (
        "a written answer keeps the others"
    )
    easy = FakeEngine(lambda request: (7,))
    assert len(asyncio.run(WithSolutionAnchor()(draw, sampler_of(easy, draw, verifier=sevens))).samples) == 2


def test_a_row_without_a_solution_has_no_anchor():
    draw = Draw(0, Prompt("p", (5,), row={"answer": 7}), 1)
    rollout = asyncio.run(
        WithSolutionAnchor()(draw, sampler_of(FakeEngine(lambda request: (4,)), draw, verifier=sevens))
    )
    assert [s.tokens for s in rollout.samples] == [(4,)]


def two_of_three(request) -> tuple[int, ...]:
    """The first answer is correct; the others are not."""
    return (7, 3, 3, 3) if request.stream == (0,) else (4,)


def test_siblings_become_views():
    draw = Draw(0, Prompt("p", (5,), text="5"), 3)
    rollout = asyncio.run(
        worded(SiblingViewStrategy(), "packaged")(draw, sampler_of(FakeEngine(two_of_three), draw, verifier=sevens))
    )
    assert not rollout.samples[0].prompt_views, "a correct answer has no view"
    solution = rollout.samples[0].text
    sampler = sampler_of(FakeEngine(two_of_three), draw, verifier=sevens)
    context = sampler.prompt(f"5{solution}5")
    assert [s.prompt_views for s in rollout.samples[1:]] == [{"sibling": context}] * 2
    wrong = FakeEngine(lambda request: (4,))
    alone = asyncio.run(worded(SiblingViewStrategy(), "packaged")(draw, sampler_of(wrong, draw, verifier=sevens)))
    assert not any(s.prompt_views for s in alone.samples), "without a correct answer there is no view"
    with pytest.raises(ValueError, match="placeholders"):
        SiblingViewStrategy(prompt_template="{problem} {__class__}")


def routed_step() -> Batch:
    """A correct and a wrong answer; the wrong one has a view and two teacher rows."""
    rollout = rollout_of([1.0, 0.0], lengths=[2, 2])
    samples = (rollout.samples[0], replace(rollout.samples[1], prompt_views={"sibling": (1, 2, 3)}))
    batch = pack([Rollout(rollout.draw, samples)])
    entropy = f64([math.nan, math.nan, 0.394398, 1.088900])
    jsd = f64([math.nan, math.nan, 0.063288, 0.005059]).requires_grad_()
    measures = {Entropy("teacher", "sibling"): entropy, Divergence("teacher", 0.5, "sibling"): jsd}
    new = f64([-0.7] * 4).requires_grad_()
    return batch.having(logp=new, logp_old=new.detach(), advantage=f64([1.0, 1, -1, -1]), measures=measures)


def test_certainty_weights():
    w = TeacherCertainty()(routed_step())
    assert w.tolist() == pytest.approx([1, 1, 1.333935, 0.666065], abs=1e-6)
    assert TeacherCertainty(beta=0.0)(routed_step()).tolist() == [1.0] * 4
    assert (w[2:] * f64([0.063288, 0.005059])).tolist() == pytest.approx([0.084422, 0.003370], abs=1e-6)


def test_srpo_routes():
    """Correct tokens have GRPO's gradient, wrong ones that of the divergence, and all share one divisor."""
    step, objective = routed_step(), srpo().objective
    prepared = objective.prepare(step)
    loss = objective(prepared)
    jsd = prepared.measures[Divergence("teacher", 0.5, "sibling")]
    slope, through = torch.autograd.grad(loss, (step.logp, jsd))
    assert (-slope).tolist() == pytest.approx([0.25, 0.25, 0, 0])
    assert through.tolist() == pytest.approx([0, 0, 1.333935 / 4, 0.666065 / 4], abs=1e-6)
    plain = replace(step, samples=tuple(replace(s, prompt_views={}) for s in step.samples))
    assert not ViewMask("sibling")(plain).any()
    assert isinstance(objective.surrogate, GatedSurrogate)


def test_distillation_is_minus_the_divergence():
    step = routed_step()
    gain = Distillation(teacher_view="sibling")(step)
    assert gain.tolist() == pytest.approx([0, 0, -0.063288, -0.005059])


def test_teacher_gap_example():
    student, teacher = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.2, 0.1])
    batch = pack([rollout_of([0.0], lengths=[3])])
    kl = float((student * np.log(student / teacher)).sum())
    batch = batch.having(
        logp_old=f64(np.log(student)),
        measures={Logp("teacher"): f64(np.log(teacher)), Divergence("teacher", 1.0): f64([kl] * 3)},
    )
    assert TeacherGap()(batch.verdict_score, batch).tolist() == pytest.approx(
        [0.336472, -0.405465, -0.693147], abs=1e-6
    )
    vopd = TeacherGap(use_kl_baseline=True)(batch.verdict_score, batch)
    assert vopd.tolist() == pytest.approx([0.428505, -0.313432, -0.601114], abs=1e-6)
    assert float((f64(student) * vopd).sum()) == pytest.approx(0, abs=1e-12), "its mean under the student is 0"
    with pytest.raises(ValueError, match="discount"):
        TeacherGap(discount=0.9, use_kl_baseline=True)


def test_early_tokens_weigh_most():
    gap = f64([-0.1, -2, 0.3, -0.6])
    batch = pack([rollout_of([0.0], lengths=[4])])
    batch = batch.having(logp_old=f64([0.0] * 4), measures={Logp("teacher"): gap})
    weighted = EarlyTokenCredit()(batch.verdict_score, batch)
    assert (weighted / gap).tolist() == pytest.approx([1.5, 1.483333, 1.15, 1.1], abs=1e-6)
    assert EarlyTokenCredit(early_boost=0.0)(batch.verdict_score, batch).tolist() == pytest.approx(gap.tolist())
    discounted = TeacherGap(discount=0.9)(batch.verdict_score, batch)
    assert discounted.tolist() == pytest.approx([-2.0944, -2.216, -0.24, -0.6], abs=1e-6)


def test_baseline_keeps_the_expected_gradient():
    """Over all tokens, both credits have the gradient of minus the reverse KL; the baseline's varies less."""
    student, teacher = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.2, 0.1])
    score = np.eye(3) - student  # d log p(token) / d logits
    a = np.log(teacher / student)
    kl = float((student * np.log(student / teacher)).sum())
    means = [(student[:, None] * (x[:, None] * score)).sum(0) for x in (a, a + kl)]
    np.testing.assert_allclose(means[0], means[1], atol=1e-12)
    np.testing.assert_allclose(means[0], [0.214253, -0.094030, -0.120223], atol=1e-6)
    spreads = [float((student * (((x[:, None] * score) - m) ** 2).sum(1)).sum()) for x, m in zip((a, a + kl), means)]
    assert spreads == pytest.approx([0.084950, 0.059498], abs=1e-6)


def test_positive_weights():
    """With fresh data the weights are equal; they follow the change of each answer's mean log-prob."""
    step = answers([0.0] * 3, [1.0] * 3)
    objective = Objective(surrogate=PositiveOnly(), aggregate=group_token_mean)
    assert j_and_slope(objective, step)[1] == pytest.approx([1 / 3] * 3)
    s = [-0.2, -0.5, -0.8]
    for temperature, expected in ((1.0, [0.4368, 0.3236, 0.2397]), (0.25, [0.7184, 0.2164, 0.0652])):
        step = answers(s, [1.0] * 3)
        objective = Objective(surrogate=PositiveOnly(temperature), aggregate=group_token_mean)
        assert j_and_slope(objective, step)[1] == pytest.approx(expected, abs=6e-5)
    assert popo().filter is correct_only


def test_refine_table():
    rows = [(1.0, 1.0, 1.0, 0.9), (1.0, 1.0, 2 / 3, 0.5), (0.0, 1.0, 1.0, 0.2), (0.0, 1.0, 1.0, 0.9)]
    names = ("structure", "references", "confidence")
    parts = {name: [row[k] for row in rows] for k, name in enumerate(names, 1)}
    batch = pack([rollout_of([row[0] for row in rows], subscores=parts)])
    reward = batch.verdict_score
    structure, references = AddSubscore("structure", 0.25), AddSubscore("references", 0.25)
    for part in (Correctness(0.25), structure, references, AddBrierScore("confidence")):
        reward = part(reward, batch)
    assert reward.tolist() == pytest.approx([0.9975, 0.854167, 0.74, 0.5475], abs=1e-6)
    a = Standardised(eps=1e-4)(reward, batch)
    assert a.tolist() == pytest.approx([1.118560, 0.364819, -0.235544, -1.247836], abs=1e-6)


def cued_rollout(usual: float | None, wrong: float = 0.0) -> Rollout:
    async def scored(prompt: Prompt, sample: Sample) -> Verdict:
        verdict = await sevens(prompt, sample)
        return verdict if verdict.outcome is Outcome.correct else replace(verdict, score=wrong)

    draw = Draw(0, Prompt("p", (5,), text="5"), 3, metadata={} if usual is None else {"mean": usual})
    engine = FakeEngine(lambda request: two_of_three(request) if request.already_generated_count == 0 else (7,))
    return asyncio.run(CorrectPrefixCuesStrategy(1.0)(draw, sampler_of(engine, draw, verifier=scored)))


def test_cue_of_a_hard_prompt():
    """One of three answers is correct. Usually all are: the gap is 2/3 of the usual, and so is the cue of 3 tokens."""
    rollout = cued_rollout(1.0)
    assert [s.role for s in rollout.samples] == ["answer"] * 3 + ["first"] * 3
    assert [s.tokens[:2] for s in rollout.samples[:3]] == [(7, 3)] * 3
    assert [sum(s.trained) for s in rollout.samples[:3]] == [1] * 3, "the cue is not trained"
    for usual in (None, 0.3):
        assert [s.role for s in cued_rollout(usual).samples] == ["answer"] * 3


@pytest.mark.parametrize(("usual", "wrong"), [(0.0, -1.0), (-0.5, -3.0)])
def test_a_cue_where_usual_rewards_are_not_positive(usual: float, wrong: float):
    """The mean of the answers, (1 + 2 wrong) / 3, is further below the usual one than that is from 0."""
    assert [s.tokens[:2] for s in cued_rollout(usual, wrong).samples[:3]] == [(7, 3)] * 3


def test_recent_rewards_are_the_last_rounds():
    part = RecentMeanScoresCurriculum(window_rounds=2)
    state, draws = part.draw(part.init(NumberedTask(4), 0), NumberedTask(4), 2, 3)
    assert [d.metadata for d in draws] == [{}, {}]
    for scores in ([0.0, 0.0], [1.0, 0.0], [1.0, 1.0]):
        state = part.observe(state, [rollout_of(scores)])
    assert state["recent_means"] == [0.5, 1.0]
    _, draws = part.draw(state, NumberedTask(4), 1, 3)
    assert draws[0].metadata == {"mean": 0.75}
    lost = Verdict(Outcome.unverifiable, cause="the machine was busy")
    rollout = rollout_of([1.0, 1.0])
    rollout = replace(rollout, samples=(rollout.samples[0], replace(rollout.samples[1], verdict=lost)))
    assert part.observe(state, [rollout])["recent_means"] == [1.0, 1.0], "an unverifiable answer is not a wrong one"


def test_finished_samples_stay_finished():
    """The written solution ends as an answer does, so verifiers see a whole answer."""
    draw = Draw(0, Prompt("p", (5,), row={"solution": "7"}), 1)
    rollout = asyncio.run(
        WithSolutionAnchor()(draw, sampler_of(FakeEngine(lambda request: (4,)), draw, verifier=sevens))
    )
    assert rollout.samples[-1].finish is Finish.stop


def test_aggregates_of_contrasts_are_shares():
    """Each adds up to 1 over a step with pairs and mixed groups."""
    step = Batch.joined([answers(S, R), answers(S, [1.0] * 4)])
    for aggregate in (pair_mean, mixed_mean, group_token_mean, token_mean):
        assert float(aggregate(step).sum()) == pytest.approx(1)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_a_mixing_weight_outside_0_to_1_is_refused_where_it_is_written(alpha):
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        Distillation(alpha=alpha)
