"""Methods of flow policies: the worked numbers of the specifications, and whole paths against NumPy transcriptions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from groupwise.advantages import Bounded, Standardised
from groupwise.data import (
    WRITTEN,
    Draw,
    Finish,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Verdict,
    needs,
    pack,
    rollout_of,
)
from groupwise.methods import Method, OptimalityProbability, diffusion_nft, flow_grpo, grpo_guard
from groupwise.models import (
    CoefficientsPreservingNoise,
    DanceGrpoNoise,
    DenoisingNoise,
    DenoisingSettings,
    FlowGrpoNoise,
    ForwardProcessLoss,
    IntegratedNoise,
    StepKL,
    VelocityDifference,
    encode_action,
    log_density,
)
from groupwise.objective import Clip, Objective, token_mean
from tests.golden import papers_flow as papers
from tests.golden.flow_groups import FIRST, STEPS, compare_whole_path, f64, made_up, near, policy_of

X, V, E = [1.0, -0.5], [0.8, -0.2], [0.3, -1.2]


def at(noise: DenoisingNoise, velocity: list[float], now: float = 0.6, then: float = 0.5) -> tuple[Tensor, Tensor]:
    return noise(f64([X]), f64([velocity]), f64([now]), f64([then]))


def test_worked_numbers_of_a_step() -> None:
    mean, std = at(FlowGrpoNoise(0.7), V)
    near(mean, [0.839150, -0.444475])
    near(std, 0.271109)
    near(std / math.sqrt(0.1), 0.857321)
    after = mean + std * f64([E])
    near(after, [0.920483, -0.769806])
    old = log_density(after, mean, std)
    near(old, 0.003796)
    moved, _ = at(FlowGrpoNoise(0.7), [0.85, -0.18])
    near(moved, [0.832925, -0.446965])
    new = log_density(after, moved, std)
    near(new, 0.005710)
    near((new - old).exp(), 1.001915)
    near((moved - mean).square().mean() / (2 * std**2), 1.52894e-4, 1e-9)
    score = -(f64([X]) + 0.4 * f64([V])) / 0.6
    near(score, [-2.2, 0.966667])
    near(mean, f64([X]) - 0.1 * f64([V]) + std**2 / 2 * score, 1e-12)
    near(at(FlowGrpoNoise(0.0), V)[0], [0.92, -0.48], 1e-12)
    near(at(FlowGrpoNoise(0.0), V)[1], 0.0, 0)


def test_worked_numbers_of_the_other_noise_laws() -> None:
    mean, std = at(CoefficientsPreservingNoise(0.7), V)
    near(std, 0.445503)
    near(mean, [0.559634, -0.321657])
    near(mean, papers.cps_step(np.array(X), np.array(V), 0.6, 0.5, 0.7)[0], 1e-12)
    mean, std = at(DanceGrpoNoise(0.3), V)
    near(std, 0.094868)
    near(mean, [0.910100, -0.475650])
    for m, expected in ((1, 1.053827), (4, -4.683674)):
        near(log_density(mean + m * std * f64([E]), mean, std), expected)
    mean, std = at(IntegratedNoise(1.0), V)
    near(std**2, 0.123144)
    near(mean, [0.784542, -0.420481])
    spans = ((1.0, 0.95), (0.6, 0.5), (0.2, 0.1), (0.1, 0.0))
    stds = [float(at(IntegratedNoise(1.0), V, *span)[1]) for span in spans]
    near(stds, [1.662351, 0.350918, 0.133353, 0.073216])
    near(np.square(stds), [papers.sage_variance(*span) for span in spans], 1e-12)


def test_worked_loss_of_flow_grpo() -> None:
    batch = pack([rollout_of([0.2, 0.8, 0.5, 0.5], lengths=[1, 1, 1, 1])])
    a = Bounded(5.0)(Standardised(ddof=0, eps=1e-4)(batch.verdict_score, batch), batch)
    near(a, [-1.413547, 1.413547, 0, 0])
    logp = f64([0.005710]).requires_grad_()
    objective = Objective(surrogate=Clip(1e-4, 1e-4), aggregate=token_mean)
    step = objective.prepare(batch.take([1]).having(advantage=a[1:2]))
    loss = objective(step.having(logp=logp, logp_old=f64([0.003796])))
    loss.backward()
    near(loss, -1.413689)
    near(logp.grad, 0.0, 0)


def test_worked_ratio_of_grpo_guard() -> None:
    """The centred log-ratio is the mean of movement times noise; the clipped loss has no gradient, the other has."""
    method = grpo_guard()
    std, moved, plain = 0.271109, [-0.006225, -0.002490], 0.001914
    kl = float(np.mean(np.square(moved))) / (2 * std**2)
    near(plain + kl, 0.002067)
    constants = {m: f64([std]) for m in method.needs if "std" in str(m)} | {
        m: f64([0.1]) for m in method.needs if "dt" in str(m)
    }
    for a, loss, slope in ((1.0, -10.00002, False), (-1.0, 10.005604, True)):
        batch = pack([rollout_of([1.0], lengths=[1])]).having(advantage=f64([a]), measures=constants)
        logp = f64([plain]).requires_grad_()
        step = method.objective.prepare(batch).having(
            logp=logp, logp_old=f64([0.0]), measures={StepKL("policy"): f64([kl])}
        )
        value = method.objective(step)
        value.backward()
        near(value, loss, 1e-5)
        assert (float(logp.grad) != 0) is slope  # type: ignore[arg-type]
    near(math.exp(np.mean(np.multiply(moved, E))), 1.000560407, 1e-6)


class Fixed(nn.Module):
    """The same velocity everywhere."""

    def __init__(self, velocity: list[float]) -> None:
        super().__init__()
        self.value = nn.Parameter(f64(velocity))

    def forward(self, x: Tensor, t: Tensor, words: Tensor) -> Tensor:
        return self.value.expand_as(x)


@pytest.mark.parametrize(("beta", "errors", "loss"), [(1.0, (0.06, 0.18), 0.48), (0.1, (0.114, 0.126), 5.88)])
def test_worked_loss_of_diffusion_nft(beta: float, errors: tuple[float, float], loss: float) -> None:
    denoise = DenoisingSettings(steps=5)  # the time of step 2 is 0.6
    new, old = (policy_of(Fixed(v), denoise) for v in ([-0.4, 1.1], [-0.3, 1.0]))
    action = encode_action(np.array([0.5, 0.2], np.float32), np.array([1, -1], np.float32))
    sample = Sample(
        context=(FIRST,), stream=(0,), limit=5, tokens=(2,), origin=(WRITTEN,), logp=(math.nan,), actions=(action,),
        finish=Finish.stop, verdict=Verdict(Outcome.correct),
    )  # fmt: skip
    batch = pack([Rollout(Draw(0, Prompt("p", (FIRST,)), 1), (sample,))])
    near(OptimalityProbability(5.0)(f64([2.0]), batch), 0.7)
    surrogate = diffusion_nft(beta=beta).objective.surrogate
    wanted = [Logp("policy"), VelocityDifference("reference"), *sorted(needs(surrogate), key=repr)]
    numbers = new.measure(batch, wanted, {"old": old, "reference": old})
    near([numbers[ForwardProcessLoss(b)].item() for b in (beta, -beta)], errors)  # the action is float32
    near(numbers[VelocityDifference("reference")], 0.01, 1e-9)
    near(-surrogate(batch.having(advantage=f64([0.7]), measures=numbers)), loss, 1e-5)


PAPERS: dict[Callable[..., Method], Callable[..., Any]] = {
    flow_grpo: papers.paper_flow_grpo,
    grpo_guard: papers.paper_grpo_guard,
    diffusion_nft: papers.paper_diffusion_nft,
}


@pytest.mark.parametrize("publish", PAPERS, ids=["flow_grpo", "grpo_guard", "diffusion_nft"])
def test_whole_path(publish: Callable[..., Method]) -> None:
    """Loss, and its gradient by the weights of the velocity: clipped and unclipped steps."""
    method = publish(steps=STEPS)
    assert method.denoise is not None
    written = [range(STEPS - 1)] * 2 if method.strategy != flow_grpo().strategy else ()
    for moved in (1e-6, 1e-2):
        rng = np.random.default_rng(7)
        groups, batch = made_up(method.denoise, rng, written)
        compare_whole_path(method, PAPERS[publish], groups, batch, rng, moved)
