"""DiffusionNFT: the velocity moves towards good samples and away from bad ones, on the forward process."""

from groupwise.advantages import Bounded, Optimality, Standardised
from groupwise.learner import InitialPolicy, SamplingPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.models import Denoise, FlowNoise
from groupwise.objective import ImplicitPair, Objective, VelocityPenalty, token_mean
from groupwise.rollout import Retraced

__all__ = ["diffusion_nft"]


def diffusion_nft(*, group_size: int = 24, steps: int = 10, beta: float = 1.0, distance: float = 1e-4) -> Method:
    """Two implicit policies per sample, one better and one worse, fitted by flow matching; no likelihoods."""
    return Method(
        group_size=group_size,
        denoise=Denoise(noise=FlowNoise(0.0), steps=steps),
        strategy=Retraced(),
        advantage=(Standardised(ddof=0, eps=1e-4), Bounded(5.0), Optimality(5.0)),
        models=(("reference", InitialPolicy()), ("old", SamplingPolicy())),
        objective=Objective(
            surrogate=ImplicitPair(beta, scale=5.0), penalties=(VelocityPenalty(distance),), aggregate=token_mean
        ),
        minibatches=2,
    )


REFERENCE = Reference(
    paper="DiffusionNFT: Online Diffusion Reinforcement with Forward Process",
    arxiv="2509.16117",
    label="code read",
    code="NVlabs/DiffusionNFT@24af5554898d85e93efa492f42b5e9cdf4156e9b:scripts/train_nft_sd3.py",
    parent="flow_grpo",
    formula="""\
r = clip(A / (2 A_max) + 1/2, 0, 1),  x_t = (1 - t) x_0 + t e
v+ = beta v + (1 - beta) v_old,  v- = (1 + beta) v_old - beta v,  x0+- = x_t - t v+-
L = mean of A_max / beta [ r l+ + (1 - r) l- ] + kappa mean (v - v_ref)^2
l+- = mean (x0+- - x_0)^2 / sg[ max(mean |x0+- - x_0|, 1e-5) ]""",
    differences=(
        Difference("group size, steps", "24, 10", "24, 10", "24, 10"),
        Difference("beta", "1, or 0.1 for some rewards", "1", "1.0"),
        Difference("kappa", "not given", "1e-4", "1e-4"),
        Difference(
            "old policy",
            "EMA of the policy",
            "type 1: its factor grows by 0.001 a step, to 0.5",
            "the policy that sampled (type 0 of the code)",
        ),
        Difference("sampler", "any", "DPM-2, deterministic", "Euler, deterministic"),
        Difference("times of a sample", "drawn", "the sampler's times but the last, shuffled", "the same, in order"),
        Difference("group without a signal", "not specified", "kept", "kept"),
    ),
    proofs=(
        "tests/golden/test_flow.py::test_worked_loss_of_diffusion_nft",
        "tests/golden/test_flow.py::test_whole_path[diffusion_nft]",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="rings",
        parent="flow_grpo",
        least=0.05,
        matched="steps",
        settings=("iterations = 10",),
    ),
    finding="The method samples without noise and flow_grpo with it, so eval/accuracy, the first metric of the effect, "
    "compares answers of two samplers. It was changed after one run of seed 0 to the accuracy of the deterministic "
    "sampler, which is the same for both.",
)
