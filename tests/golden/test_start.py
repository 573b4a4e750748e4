"""The family `start`: the worked numbers of PPO and REINFORCE, and the greedy baseline of ReMax."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.data import Draw, Outcome, Prompt, Return, Value, Verdict, pack, rollout_of
from groupwise.methods import GAE, GreedyAnswerStrategy, ppo, reinforce, reinforce_pp_baseline, remax
from groupwise.objective import DualClip, Objective
from groupwise.training.loop import compute_advantages
from tests.golden.f0 import f0, f64, j_and_slope, rows
from tests.golden.papers_start import gae
from tests.golden.whole_path import answers_of, batch_of, every, measured
from tests.rollout.fakes import FakeEngine, sampler_of


def test_reinforce_is_the_policy_gradient():
    """Each token's slope is A / answers, whatever the length of its answer."""
    batch = pack([rollout_of([score], lengths=[n]) for score, n in ((1.0, 3), (0.0, 1), (1.0, 2), (0.0, 4))])
    step = compute_advantages(batch, reinforce()).having(logp=torch.zeros(10, dtype=torch.float64, requires_grad=True))
    _, slope = j_and_slope(reinforce().objective, step)
    a = math.sqrt(3) / 2  # ddof 1
    assert slope == pytest.approx([a / 4] * 3 + [-a / 4] + [a / 4] * 2 + [-a / 4] * 4, abs=1e-6)


def test_whitening_moves_a_solved_group():
    """The documented trap: the token mean of the centred rewards is not 0, so a solved group is pushed down."""
    batch = pack([rollout_of([1.0, 0.0], lengths=[3, 1]), rollout_of([1.0, 1.0], lengths=[2, 2])])
    a = compute_advantages(batch, reinforce_pp_baseline()).advantage
    assert a.tolist() == pytest.approx([1.06066] * 3 + [-1.767767] + [-0.353553] * 4, abs=1e-6)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 1.0, [0.8, 0.6, 0.4, 0.5]),
        (1.0, 0.95, [0.7284375, 0.55625, 0.375, 0.5]),
        (1.0, 0.0, [0.2, 0.2, -0.1, 0.5]),
        (0.99, 0.95, [0.701535, 0.537518, 0.36525, 0.5]),
    ],
)
def test_ppo_credit(gamma: float, lam: float, expected: list[float]):
    batch = pack([rollout_of([1.0], lengths=[4])])
    batch = batch.having(measures={Value("critic"): f64([0.2, 0.4, 0.6, 0.5])})
    assert GAE(gamma, lam)(batch.verdict_score, batch).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_critic_learns_returns_of_advantages_that_are_not_whitened():
    """`G = A + V` with the A of `gae`, whose transcription whitens a copy for the policy."""
    groups = [[o for o in group if o.kind != "unverifiable"] for group in answers_of(0, 0.3)]
    batch = compute_advantages(measured(batch_of(groups, ppo()), every(groups), ppo()), ppo())
    expected = np.concatenate([gae(o) + o.v for o in every(groups)])
    np.testing.assert_allclose(batch[Return("critic")].numpy(), expected, rtol=1e-12)
    assert abs(expected.mean()) > 0.1 and batch.advantage.mean().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("a", "r", "gain"), [(-1.0, 5.0, -3.0), (-1.0, 2.0, -2.0), (-1.0, 0.5, -0.8), (1.0, 5.0, 1.2)])
def test_dual_clip(a: float, r: float, gain: float):
    step = rows([r], [a], [1])
    value, slope = j_and_slope(Objective(surrogate=DualClip()), step)
    assert value == pytest.approx(gain)
    assert (slope[0] == 0) == (r in (5.0, 0.5))


def test_dual_clip_leaves_f0_alone():
    plain, dual = (j_and_slope(Objective(surrogate=s), f0()) for s in (ppo().objective.surrogate, DualClip()))
    assert plain == dual
    assert plain[0] == pytest.approx(0.24)


def test_ppo_without_a_reference_or_with_a_dual_clip():
    assert [name for name, _ in ppo(kl=0.0).models] == ["critic"]
    assert isinstance(ppo(dual_clip=3.0).objective.surrogate, DualClip)


def test_greedy_baseline():
    """The greedy answer is asked for at temperature 0, is not trained, and its score is the others' baseline."""

    async def verify(prompt: Prompt, sample) -> Verdict:
        return Verdict(Outcome.correct if 7 in sample.tokens else Outcome.wrong)

    engine = FakeEngine(lambda request: (7,) if request.sampling.temperature == 0 else (request.stream[0] + 7,))
    draw = Draw(0, Prompt("p", (5,)), 2)
    sampler = sampler_of(engine, draw, verifier=verify)
    rollout = asyncio.run(GreedyAnswerStrategy()(draw, sampler))
    assert [s.role for s in rollout.samples] == ["answer", "answer", "greedy"]
    assert [request.sampling.temperature for request in engine.requests] == [1.0, 1.0, 0.0]
    assert [s.verdict.subscores.get("baseline") for s in rollout.samples] == [1.0, 1.0, None]
    step = compute_advantages(pack([rollout]), remax())
    assert step.advantage.tolist() == [0.0, -1.0]
    assert replace(remax(), group_size=4).strategy == GreedyAnswerStrategy("baseline")
