"""Worked numbers of the methods of stored answers."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from groupwise.data import Batch, ClassifierScore, Draw, Logp, Prompt, Rollout, Sample, TokenMark, pack, rollout_of
from groupwise.data.sample import ENVIRONMENT, WRITTEN
from groupwise.data.verdicts import Outcome, Verdict
from groupwise.methods import Method, bradley_terry, dpo, ipo, kto, orpo, sft, simpo
from groupwise.training.loop import compute_advantages
from tests.golden.f0 import f64, j_and_slope

OTHER = "other_prompt"


def loss_of(method: Method, batch: Batch, logp: torch.Tensor) -> tuple[float, list[float]]:
    """The loss of a step and its derivatives by the log-probs."""
    batch = batch.having(logp=logp.clone().requires_grad_(), logp_old=logp)
    j, slope = j_and_slope(method.objective, compute_advantages(batch, method))
    return -j, [-x for x in slope]


def test_sft_is_the_mean_over_all_answer_tokens() -> None:
    """Not the mean over answers; tokens of other messages count nowhere."""
    right = Verdict(Outcome.correct)
    short = Sample(context=(1,), stream=(0,)).insert((4,), WRITTEN).with_verdict(right)
    talk = Sample(context=(1,), stream=(0,)).insert((4, 5), WRITTEN).insert((6,), ENVIRONMENT).insert((7,), WRITTEN)
    batch = pack(
        [Rollout(Draw(i, Prompt(str(i), (1,)), 1), (s,)) for i, s in enumerate([short, talk.with_verdict(right)])]
    )
    loss, slope = loss_of(sft(), batch, f64([-1.0, -2.0, -3.0, -6.0]))
    assert (loss, slope) == (3.0, [-0.25] * 4)


PAIR = [1.0, 0.0]
FIRST = {"dpo": (dpo(), math.log(2)), "ipo": (ipo(), 25.0), "ipo, 0.5": (ipo(beta=0.5), 1.0)}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_loss_of_pairs(name: str) -> None:
    """Where the policy is the reference, whatever the answers."""
    method, expected = FIRST[name]
    batch = pack([rollout_of(PAIR, lengths=[4, 1]), rollout_of(PAIR, lengths=[2, 3])])
    logp = -torch.from_numpy(np.random.default_rng(0).random(batch.tokens))
    loss, slope = loss_of(method, batch.having(measures={Logp("reference"): logp}), logp)
    assert loss == pytest.approx(expected, abs=1e-15)
    assert all(x < 0 for x in slope[:4]) and slope[4] > 0, "the chosen answer rises, the rejected one falls"


def test_equal_scores_have_the_loss_ln_2() -> None:
    """Of a head of zeros. A margin of 1 and a centred pair: log(1 + e^(1 - 2)) + 0.1 (2 + 0)^2."""

    def loss(
        method: Method, scores: list[float], margins: Sequence[float] = (math.nan, math.nan)
    ) -> tuple[float, list[float]]:
        batch = pack([rollout_of(PAIR, lengths=[2, 1]), rollout_of(PAIR, lengths=[1, 3])])
        column = f64([0.0, scores[0], scores[1], scores[0], 0.0, 0.0, scores[1]]).requires_grad_()
        logp = torch.zeros(batch.tokens, dtype=torch.float64)
        marks = f64([margins[0]] * 3 + [margins[1]] * 4)
        measures = {ClassifierScore(): column, TokenMark("margin"): marks}
        batch = batch.having(logp=logp, logp_old=logp, measures=measures)
        step = method.objective.prepare(compute_advantages(batch, method))
        value = method.objective(step)
        value.backward()
        return float(value.detach()), column.grad.tolist()

    value, slope = loss(bradley_terry(), [1.5, 1.5])
    assert value == pytest.approx(math.log(2), abs=1e-15)
    assert slope[1] == slope[3] == -0.25 and slope[2] == slope[6] == 0.25, "the chosen answer rises"
    value, _ = loss(bradley_terry(margin=1.0, centring=0.1), [2.0, 0.0])
    assert value == pytest.approx(math.log(1 + math.exp(-1)) + 0.4, abs=1e-15)
    value, _ = loss(bradley_terry(margin=1.0), [2.0, 0.0], margins=[-0.5, math.nan])
    expected = (math.log(1 + math.exp(-1.5)) + math.log(1 + math.exp(-1))) / 2
    assert value == pytest.approx(expected, abs=1e-15), "a row's margin is added to the method's"


def test_a_margin_is_of_means() -> None:
    """SimPO: log sigmoid(2 (-1 + 2) - 0.5)."""
    batch = pack([rollout_of(PAIR, lengths=[2, 1])])
    loss, _ = loss_of(simpo(), batch, f64([-0.5, -1.5, -2.0]))
    assert loss == pytest.approx(math.log(1 + math.exp(-1.5)), abs=1e-15)


def test_a_certain_answer_has_finite_odds() -> None:
    """At the probability 1/2 the odds are 1. A policy that is certain of an answer has a finite loss and gradient."""
    batch = pack([rollout_of(PAIR, lengths=[1, 1])])
    half = math.log(0.5)
    loss, _ = loss_of(orpo(), batch, f64([half, half]))
    assert loss == pytest.approx(math.log(2) + 0.1 * math.log(2), abs=1e-15)
    for logp in ([0.0, -1.0], [-1.0, 0.0], [0.0, 0.0]):
        loss, slope = loss_of(orpo(), batch, f64(logp))
        assert all(map(math.isfinite, (loss, *slope)))


def test_the_reference_point_is_the_mean_under_other_prompts() -> None:
    """z = (0.6 - 0.2) / 2; an answer without another prompt has no part in it. It is never below 0."""
    method = kto(desirable=2.0)
    batch = pack([rollout_of([x], lengths=[1]) for x in (1.0, 0.0, 1.0)])
    logp, ref = f64([-1.0, -1.0, -1.0]), f64([-1.5, -0.5, -1.0])
    nan = math.nan

    def loss(gaps: list[float]) -> float:
        views = {
            Logp("policy", OTHER): f64(gaps),
            Logp("reference", OTHER): f64([0.0 if g == g else nan for g in gaps]),
        }
        return loss_of(method, batch.having(measures={Logp("reference"): ref, **views}), logp)[0]

    def expected(z: float) -> float:
        value = [2 * (1 - sigmoid(0.1 * (0.5 - z))), 1 - sigmoid(0.1 * (z + 0.5)), 2 * (1 - sigmoid(0.1 * (0 - z)))]
        return sum(value) / 3

    assert loss([0.6, -0.2, nan]) == pytest.approx(expected(0.2), abs=1e-15)
    assert loss([-0.6, 0.2, nan]) == loss([nan, nan, nan]) == pytest.approx(expected(0.0), abs=1e-15)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
