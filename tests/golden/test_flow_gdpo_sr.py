"""GDPO-SR: the worked numbers of the specification, what the loss claims, and the whole path against NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Logp, pack, rollout_of
from groupwise.methods import GroupPreference, gdpo_sr
from groupwise.objective import Objective, PairwisePreference, group_mean, pair_mean
from groupwise.rewards import TextureWeightedReward
from tests.golden.f0 import f64
from tests.golden.flow_groups import compare_whole_path, made_up, near

ERRORS, REFERENCE = [0.100, 0.102, 0.101], [0.1001, 0.1018, 0.1012]
SCORES = {"psnr": [24.0, 25.0, 26.0], "maniqa": [0.6, 0.5, 0.4], "musiq": [70.0, 72.0, 65.0], "texture": [0.75] * 3}


def loss_of(errors: list[float], reference: list[float], advantage: list[float], beta: float) -> tuple[Tensor, Tensor]:
    """The loss of one group of samples of one step each, and its gradient by their errors."""
    n = len(errors)
    e = f64(errors).requires_grad_()
    batch = pack([rollout_of([0.0] * n, lengths=[1] * n)])
    objective = Objective(surrogate=GroupPreference(beta), aggregate=group_mean)
    step = objective.prepare(batch.having(advantage=f64(advantage), measures={Logp("reference"): -f64(reference) / 2}))
    loss = objective(step.having(logp=-e / 2))
    return loss, torch.autograd.grad(loss, e)[0]


def test_worked_reward_and_advantage() -> None:
    batch = pack([rollout_of([0.0] * 3, subscores=SCORES)])
    reward = TextureWeightedReward("psnr", ("maniqa", "musiq"))(batch.verdict_score, batch)
    near(reward, [0.642857, 0.6875, 0.25])
    near(Standardised(ddof=1, eps=1e-8)(reward, batch), [0.482143, 0.667583, -1.149726])


def test_a_smooth_picture_is_judged_by_fidelity_and_equal_scores_are_0() -> None:
    smooth = pack([rollout_of([0.0] * 3, subscores=SCORES | {"texture": [0.0] * 3}), rollout_of([0.0] * 2)])
    part = TextureWeightedReward("psnr", ("maniqa", "musiq"))
    assert part(smooth.verdict_score, smooth).tolist() == [0.0, 0.5, 1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="at least one part"):
        TextureWeightedReward(quality_subscores=())


def test_worked_loss() -> None:
    loss, gradient = loss_of(ERRORS, REFERENCE, [0.482143, 0.667583, -1.149726], 5000.0)
    near(loss, 1.162918, 2e-6)
    near(gradient, [828.596, 1147.287, -1975.883], 2e-3)
    near(loss_of(ERRORS[:2], REFERENCE[:2], [1.0, -1.0], 5000.0)[0], 0.386871)


def test_at_the_reference_the_loss_is_log_2_and_a_shift_of_all_errors_changes_nothing() -> None:
    advantage = [0.5, 0.75, -1.25]
    loss, gradient = loss_of(ERRORS, ERRORS, advantage, 100.0)
    near(loss, math.log(2), 1e-15)
    near(gradient, [100 / 4 * a for a in advantage], 1e-12)
    shifted, same = (loss_of([e + c for e in ERRORS], REFERENCE, advantage, 100.0) for c in (0.3, 0.0))
    near(shifted[0], same[0].detach(), 1e-12)
    assert not loss_of(ERRORS, REFERENCE, [0.0, 0.0, 0.0], 5000.0)[1].any()


def pair() -> Batch:
    """Two answers of three and two tokens; the first has the larger reward."""
    batch = pack([rollout_of([1.0, 0.0], lengths=[3, 2])])
    rng = np.random.default_rng(0)
    logp, reference = (f64(rng.normal(size=5).tolist()) for _ in range(2))
    advantage = batch.sequences.spread(f64([1.0, -1.0]))
    return batch.having(
        logp=logp.requires_grad_(),
        measures={Logp("reference"): reference},
        advantage=advantage,
        reward=batch.verdict_score,
    )


def test_two_answers_give_dpo() -> None:
    gradients = []
    for surrogate, aggregate in ((GroupPreference(0.7), group_mean), (PairwisePreference(0.7), pair_mean)):
        batch = pair()
        objective = Objective(surrogate=surrogate, aggregate=aggregate)
        objective(objective.prepare(batch)).backward()
        assert batch.logp is not None and batch.logp.grad is not None
        gradients.append(batch.logp.grad)
    near(gradients[0], gradients[1], 1e-14)


@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_a_beta_that_is_not_positive_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta > 0"):
        GroupPreference(beta)


def paper_gdpo_sr(groups, new, old, ref, beta):  # type: ignore[no-untyped-def]
    """The mean over groups of `-log sigmoid(z)`, by loops; the error is that of the velocity."""
    total = 0.0
    for samples, rewards in groups:
        r = np.array(rewards)
        a = (r - r.mean()) / (r.std(ddof=1) + 1e-8)
        z = 0.0
        for weight, (k,) in zip(a, samples):
            x = (1 - k.t) * k.y + k.t * k.x
            e, e_ref = (((f(x, k.t, k.word) - (k.x - k.y)) ** 2).mean() for f in (new, ref))
            z += -beta / 2 * weight * (e - e_ref)
        total += np.log(1 + np.exp(-z))
    return total / len(groups)


@pytest.mark.parametrize("beta", [0.5, 8.0])
def test_whole_path(beta: float) -> None:
    method, rng = gdpo_sr(steps=4, beta=beta), np.random.default_rng(5)
    assert method.denoise is not None
    groups, batch = made_up(method.denoise, rng, written=((1,), (2,)))
    compare_whole_path(method, lambda *fields: paper_gdpo_sr(*fields, beta=beta), groups, batch, rng, moved=0.1)
