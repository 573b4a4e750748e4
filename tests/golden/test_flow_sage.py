"""SAGE-GRPO: sensitivities and scales of steps, the trust regions, and the whole path against NumPy."""

import math

import numpy as np
import pytest
import torch

from groupwise.data import Logp, pack, rollout_of
from groupwise.methods import EqualisedSteps, KLFromOld, sage_grpo_flow
from groupwise.models import (
    CoefficientsPreservingNoise,
    DanceGrpoNoise,
    DenoisingNoise,
    FlowGrpoNoise,
    IntegratedNoise,
    StepConstantMeasure,
    StepKL,
)
from groupwise.models.flow.flow_policy import sensitivity
from tests.golden import papers_flow as papers
from tests.golden.flow_groups import FIRST, LinearField, compare_whole_path, f64, made_up, near, policy_of

SPANS = ((1.0, 0.95), (0.6, 0.5), (0.2, 0.1), (0.1, 0.0))
SENSITIVITIES = [0.030078, 0.401939, 1.016595, 1.695300]


def sensitivities(noise: DenoisingNoise, spans: tuple[tuple[float, float], ...] = SPANS) -> torch.Tensor:
    now, then = f64(spans).unbind(1)
    return sensitivity(noise, torch.ones(len(spans), 3, 2, dtype=torch.float64), now, then)


def test_worked_sensitivities() -> None:
    n = sensitivities(IntegratedNoise(1.0))
    near(n, SENSITIVITIES)
    batch = pack([rollout_of([1.0, 0.0], lengths=[4, 4])]).having(
        measures={StepConstantMeasure("sensitivity"): n.repeat(2)}
    )
    scale = EqualisedSteps()(batch)
    near(scale[:4], [23.581025, 1.764612, 0.697689, 0.418373], 2e-5)
    near(scale * n.repeat(2), [0.709267] * 8)
    assert EqualisedSteps()(batch.take([])).shape == (0,)


@pytest.mark.parametrize(
    "noise", [FlowGrpoNoise(0.7), DanceGrpoNoise(0.3), IntegratedNoise(0.9), CoefficientsPreservingNoise(0.7)]
)
def test_the_sensitivity_is_the_derivative_of_the_mean_over_the_std(noise: DenoisingNoise) -> None:
    spans = SPANS[:3]
    now, then = f64(spans).unbind(1)
    x, v = torch.randn(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind(0)
    (mean, std), (moved, _) = (noise(x, velocity, now, then) for velocity in (v, v + 1))
    near(sensitivities(noise, spans), (moved - mean).abs()[:, 0] / std, 1e-12)


def test_a_step_without_noise_has_the_sensitivity_1() -> None:
    assert sensitivities(FlowGrpoNoise(0.0)).tolist() == [1.0] * 4
    assert sensitivities(CoefficientsPreservingNoise(0.7))[3] == 1


def test_the_kl_from_the_old_policy_is_exact_over_its_samples() -> None:
    """Over all tokens of an old policy, weighted by its probabilities: value and gradient of KL(old || new)."""
    old, new = f64([0.5, 0.3, 0.2]).log(), f64([0.1, 0.4, -0.2]).requires_grad_()
    batch = pack([rollout_of([1.0], lengths=[3])]).having(logp_old=old, logp=new.log_softmax(0))
    value = (old.exp() * KLFromOld(0.7)(batch)).sum()
    near(value, 0.7 * (old.exp() * (old - new.log_softmax(0))).sum().detach(), 1e-12)
    near(torch.autograd.grad(value, new)[0], 0.7 * (new.detach().softmax(0) - old.exp()), 1e-12)
    with pytest.raises(ValueError, match="at least 0"):
        KLFromOld(-1.0)


def test_after_a_copy_the_distance_to_the_anchor_and_its_gradient_are_0() -> None:
    method, rng = sage_grpo_flow(steps=4), np.random.default_rng(1)
    assert method.denoise is not None
    batch = made_up(method.denoise, rng)[1]
    field = papers.Field(rng.normal(size=(2, 2)), rng.normal(size=2), rng.normal(size=(2, 2)))
    policy, anchor = (policy_of(LinearField(field), method.denoise) for _ in range(2))
    kl = policy.measure(batch, [Logp("policy"), StepKL("anchor")], {"anchor": anchor})[StepKL("anchor")]
    kl.sum().backward()
    gradient = policy.velocity.w.grad
    assert kl.tolist() == [0.0] * batch.tokens and isinstance(gradient, torch.Tensor) and not torch.any(gradient)
    assert batch.samples[0].context == (FIRST,)


def sage_step(x, v, t, s):  # type: ignore[no-untyped-def]
    """Mean and Sigma of a step."""
    variance = papers.sage_variance(t, s)
    return x + (s - t) * v - variance / 2 * (x - (1 - t) * (x - t * v)) / t**2, math.sqrt(variance)


def paper_sage(groups, new, old, anchor, kappa, c=1e-4):  # type: ignore[no-untyped-def]
    """The loss by loops. The score is `-(x - (1 - t) x0) / t^2` with the estimate `x0 = x - t v`."""
    steps = groups[0][0][0]
    variances = [papers.sage_variance(k.t, k.s) for k in steps]
    n = [abs(k.s - k.t - v / 2 * (1 - k.t) / k.t) / math.sqrt(v) for k, v in zip(steps, variances)]
    total, count = 0.0, 0
    for samples, rewards in groups:
        r = np.array(rewards)
        for trajectory, a in zip(samples, np.clip((r - r.mean()) / (r.std(ddof=1) + 1e-4), -5, 5)):
            for k, sensitivity_of_step in zip(trajectory, n):
                (mean, std), (before, _), (far, _) = (
                    sage_step(k.x, f(k.x, k.t, k.word), k.t, k.s) for f in (new, old, anchor)
                )
                drift = papers.log_density(k.y, before, std) - papers.log_density(k.y, mean, std)
                moving = ((mean - far) ** 2).mean() / (2 * std**2)
                scale = np.median(n) / sensitivity_of_step
                total += scale * papers.clipped(a, np.exp(-drift), c) + kappa * (moving + 0.1 * drift)
                count += 1
    return total / count


@pytest.mark.parametrize(("moved", "kappa"), [(1e-6, 1e-7), (1e-2, 0.3)])
def test_whole_path(moved: float, kappa: float) -> None:
    method, rng = sage_grpo_flow(steps=4, kappa=kappa), np.random.default_rng(8)
    assert method.denoise is not None
    groups, batch = made_up(method.denoise, rng)
    compare_whole_path(method, lambda *fields: paper_sage(*fields, kappa=kappa), groups, batch, rng, moved)
