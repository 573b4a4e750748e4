"""Flow-GRPO: GRPO on the denoising steps of a flow model."""

from dataclasses import dataclass

from groupwise.advantages import Bounded, Standardised
from groupwise.data import Draw, Rollout, Sample, Sampler, Strategy
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.models import DenoisingSettings, FlowGrpoNoise
from groupwise.objective import Clip, Objective, StepKLPenalty, token_mean
from groupwise.rewards import mixed_scores
from groupwise.rollout import Independent
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.strategies.denoising_step_slices import without_noise

__all__ = ["NoiseWindowStrategy", "flow_grpo"]


@dataclass(frozen=True, slots=True)
class NoiseWindowStrategy(Strategy):
    """`draw.n` answers with noise in `window_steps` consecutive steps, the same of a group. Flow-GRPO-Fast.

    The window begins at a step from `min_start_step` to before `start_step_below`, by a draw for each prompt. The other
    steps have no noise, so they are not trained. arXiv:2505.05470.
    """

    window_steps: int = 2
    min_start_step: int = 0
    start_step_below: int = 5

    def __post_init__(self) -> None:
        if self.window_steps < 1 or not 0 <= self.min_start_step < self.start_step_below:
            raise ValueError(f"{self}\nneeds window_steps >= 1 and 0 <= min_start_step < start_step_below")

    @property
    def noisy_steps(self) -> tuple[int, ...]:
        """The steps that must have noise."""
        return tuple(range(self.min_start_step, self.start_step_below + self.window_steps - 1))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        start = sampler.random(0).randrange(self.min_start_step, self.start_step_below)
        samples = sampler.start(draw.prompt.token_ids, draw.n)
        answers = await together(self._denoised(sample, start, sampler) for sample in samples)
        return Rollout(draw, tuple(await sampler.verify(answers)))

    async def _denoised(self, sample: Sample, start: int, sampler: Sampler) -> Sample:
        sample = await sampler.extend(sample, limit=start, sampling=without_noise(sampler))
        sample = await sampler.extend(sample, limit=self.window_steps)
        return await sampler.extend(sample, sampling=without_noise(sampler))


def flow_grpo(
    *, group_size: int = 24, steps: int = 10, noise: float = 0.7, clip: float = 1e-4, kl: float = 0.04, window: int = 0
) -> Method:
    """Stochastic denoising steps as Gaussian actions, group z-scores, a clip of 1e-4, and the exact KL of each step.

    The sampler of a flow model is deterministic, so it does not explore, and its steps have no likelihood for a policy
    gradient. Flow-GRPO adds noise that keeps the distribution at each time, so each step is a Gaussian action with a
    known log-probability.

    Args:
        group_size: samples per prompt.
        steps: denoising steps per sample.
        noise: level of the noise, at least 0, a.
        clip: distance of both clip bounds from 1, c.
        kl: weight of the exact KL of each step to the initial policy, beta.
        window: number of steps with noise, drawn from the first half for each prompt (Flow-GRPO-Fast); 0 for all.
    """
    return Method(
        group_size=group_size,
        denoise=DenoisingSettings(noise=FlowGrpoNoise(noise), steps=steps),
        strategy=NoiseWindowStrategy(window, 0, steps // 2) if window else Independent(),
        filter=mixed_scores,
        advantage=(Standardised(ddof=0, eps=1e-4), Bounded(5.0)),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(StepKLPenalty(kl),), aggregate=token_mean),
        minibatches=2,
    )


REFERENCE = PaperReference(
    paper="Flow-GRPO: Training Flow Matching Models via Online RL",
    arxiv="2505.05470",
    evidence="code read",
    code=(
        "yifan123/flow_grpo@ac4c86e8cae021841f1fde853d340e0db67690dd:flow_grpo/diffusers_patch/sd3_sde_with_logprob.py"
    ),
    parent="grpo",
    formula="""\
x' = mu + S e,  mu = x + v dt + (s^2 / 2t)(x + (1 - t) v) dt,  S = s sqrt(|dt|),  s = a sqrt(t / (1 - t))
l = mean over numbers of log N(x'; mu, S^2),  rho = exp(l - l_old)
L = mean over samples and steps of max[ -A rho, -A clip(rho, 1 - c, 1 + c) ] + beta KL
KL = mean (mu - mu_ref)^2 / (2 s^2)""",
    differences=(
        PaperDifference("group size", "24", "24", "24"),
        PaperDifference("steps, noise level", "10, 0.7", "10, 0.7", "10, 0.7"),
        PaperDifference("clip range", "not given", "1e-4", "1e-4"),
        PaperDifference("KL coefficient", "0.04", "0.04", "0.04"),
        PaperDifference("KL", "divided by S^2 = s^2 |dt|", "by s^2", "by s^2; by S^2 with `multiply_by_dt = false`"),
        PaperDifference("std of the rewards", "of the group", "option: of the whole epoch", "of the group"),
        PaperDifference("last step", "stochastic", "stochastic, not trained", "deterministic, so not trained"),
        PaperDifference("window of stochastic steps", "drawn at random (Fast)", "the same", "all (0), or drawn"),
        PaperDifference(
            "evaluation", "40 steps, EMA weights", "the same", "evaluate.denoising_steps, the weights themselves"
        ),
        PaperDifference("samples without a signal", "not specified", "dropped, some kept to fill the batch", "dropped"),
    ),
    proof_tests=(
        "tests/golden/test_flow.py::test_worked_numbers_of_a_step",
        "tests/golden/test_flow.py::test_worked_loss_of_flow_grpo",
        "tests/golden/test_flow.py::test_whole_path[flow_grpo]",
    ),
    tuned_settings=(
        ("method.objective.surrogate.low = 1e-4", "method.objective.surrogate.high = 1e-4"),
        ("method.objective.surrogate.low = 1e-2", "method.objective.surrogate.high = 1e-2"),
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="rings",
        parent="flow_grpo",
        min_difference=0.05,
        runs_matched_by="tokens",
        settings=(
            "method.denoise.steps = 40",
            "sampling.max_tokens = 40",
            "evaluate.denoising_steps = 40",
            "method.group_size = 16",
            "iterations = 10",
        ),
        own_settings=("method.denoise.steps = 10", "iterations = 40"),
        plan="whole",
    ),
)
