"""DiffusionNFT: the velocity moves towards good samples and away from bad ones, on the forward process."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Bounded, Standardised
from groupwise.data import Advantage, Batch, NeededMeasure, Penalty, Surrogate
from groupwise.learner import InitialPolicy, SamplingPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.models import DenoisingSettings, FlowGrpoNoise, ForwardProcessLoss, VelocityDifference
from groupwise.objective import Objective, token_mean
from groupwise.objective.step_penalties import check_coefficient
from groupwise.rollout import ForwardProcess

__all__ = ["ImplicitPairLoss", "OptimalityProbability", "VelocityPenalty", "diffusion_nft"]


@dataclass(frozen=True, slots=True)
class OptimalityProbability(Advantage):
    """`clip(x / (2 max_abs) + 1/2, 0, 1)`: an advantage as the chance that the sample is good. arXiv:2509.16117.

    >>> import torch
    >>> from groupwise.data import pack, rollout_of
    >>> batch = pack([rollout_of([1.0, 0.5, 0.0])])
    >>> OptimalityProbability(5.0)(torch.tensor([2.0, 0.0, -9.0]), batch).tolist()
    [0.699999988079071, 0.5, 0.0]
    """

    max_abs: float = 5.0

    def __post_init__(self) -> None:
        if not self.max_abs > 0:
            raise ValueError(
                f"max_abs is {self.max_abs}\nuse a number above 0, such as the bound of the advantage before it"
            )

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return (x / (2 * self.max_abs) + 0.5).clamp(0, 1)


@dataclass(frozen=True, slots=True)
class ImplicitPairLoss(Surrogate):
    """`-loss_scale / beta (r l+ + (1 - r) l-)`, with the advantage as r, the chance that the sample is good.

    l+ is the error of a velocity moved by `beta` from the old one towards the policy's, l- that of one moved as far
    away. Between them, a good sample pulls the policy's velocity to its own, a bad one pushes it away. DiffusionNFT,
    arXiv:2509.16117.
    """

    beta: float = 1.0
    loss_scale: float = 5.0
    old_model: str = "old"

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.loss_scale > 0):
            raise ValueError(f"{self}\nneeds beta > 0 and loss_scale > 0")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset(
            {ForwardProcessLoss(self.beta, self.old_model), ForwardProcessLoss(-self.beta, self.old_model)}
        )

    @property
    def sampled_by(self) -> str:
        """The old velocity is that of the policy which generated the samples."""
        return self.old_model

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        towards, away = (b[ForwardProcessLoss(beta, self.old_model)] for beta in (self.beta, -self.beta))
        return -self.loss_scale / self.beta * (b.advantage * towards + (1 - b.advantage) * away)


@dataclass(frozen=True, slots=True)
class VelocityPenalty(Penalty):
    """`coefficient * mean (v - v_ref)^2`: the squared distance between velocities. DiffusionNFT, arXiv:2509.16117."""

    coefficient: float = 1e-4
    reference_model: str = "reference"

    def __post_init__(self) -> None:
        check_coefficient(self.coefficient)

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({VelocityDifference(self.reference_model)}) if self.coefficient else frozenset()

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return (
            self.coefficient * b[VelocityDifference(self.reference_model)]
            if self.coefficient
            else torch.zeros_like(b.logp)
        )


def diffusion_nft(*, group_size: int = 24, steps: int = 10, beta: float = 1.0, distance: float = 1e-4) -> Method:
    """Two implicit policies per sample, one better and one worse, fitted by flow matching; no likelihoods.

    Flow-GRPO needs stochastic samplers, stored steps and their likelihoods, which are only approximate. DiffusionNFT
    trains on noised versions of finished samples: the velocity moves towards good samples and away from bad ones.

    Args:
        group_size: samples per prompt.
        steps: denoising steps per sample.
        beta: distance of the implicit policies from the old one, in units of the policy's, above 0, beta.
        distance: weight of the squared distance to the initial velocity, kappa.
    """
    return Method(
        group_size=group_size,
        denoise=DenoisingSettings(noise=FlowGrpoNoise(0.0), steps=steps),
        strategy=ForwardProcess(),
        advantage=(Standardised(ddof=0, eps=1e-4), Bounded(5.0), OptimalityProbability(5.0)),
        models=(("reference", InitialPolicy()), ("old", SamplingPolicy())),
        objective=Objective(
            surrogate=ImplicitPairLoss(beta, loss_scale=5.0),
            penalties=(VelocityPenalty(distance),),
            aggregate=token_mean,
        ),
        minibatches=2,
    )


REFERENCE = PaperReference(
    paper="DiffusionNFT: Online Diffusion Reinforcement with Forward Process",
    arxiv="2509.16117",
    evidence="code read",
    code="NVlabs/DiffusionNFT@24af5554898d85e93efa492f42b5e9cdf4156e9b:scripts/train_nft_sd3.py",
    parent="flow_grpo",
    formula="""\
r = clip(A / (2 A_max) + 1/2, 0, 1),  x_t = (1 - t) x_0 + t e
v+ = beta v + (1 - beta) v_old,  v- = (1 + beta) v_old - beta v,  x0+- = x_t - t v+-
L = mean of A_max / beta [ r l+ + (1 - r) l- ] + kappa mean (v - v_ref)^2
l+- = mean (x0+- - x_0)^2 / sg[ max(mean |x0+- - x_0|, 1e-5) ]""",
    differences=(
        PaperDifference("group size, steps", "24, 10", "24, 10", "24, 10"),
        PaperDifference("beta", "1, or 0.1 for some rewards", "1", "1.0"),
        PaperDifference("kappa", "not given", "1e-4", "1e-4"),
        PaperDifference(
            "old policy",
            "EMA of the policy",
            "type 1: its factor grows by 0.001 a step, to 0.5",
            "the policy that sampled (type 0 of the code)",
        ),
        PaperDifference("sampler", "any", "DPM-2, deterministic", "Euler, deterministic"),
        PaperDifference(
            "times of a sample", "drawn", "the sampler's times but the last, shuffled", "the same, in order"
        ),
        PaperDifference("group without a signal", "not specified", "kept", "kept"),
    ),
    proof_tests=(
        "tests/golden/test_flow.py::test_worked_loss_of_diffusion_nft",
        "tests/golden/test_flow.py::test_whole_path[diffusion_nft]",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="rings",
        parent="flow_grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("iterations = 10",),
        plan="whole",
    ),
    our_finding="The method samples without noise and flow_grpo with it, so eval/accuracy, the first metric of the "
    "effect, compares answers of two samplers. It was changed after one run of seed 0 to the accuracy of "
    "the deterministic sampler, which is the same for both.",
)
