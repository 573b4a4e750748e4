"""VADE: variance-aware dynamic sampling of prompts."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Clip, Objective, group_mean
from groupwise.rollout import ThompsonSampling

__all__ = ["vade"]


def vade(
    *,
    group_size: int = 8,
    fast: float = 0.2,
    slow: float = 0.999,
    value: Literal["gain", "variance"] = "gain",
    sampled: bool = True,
    clip: float = 0.2,
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO on the prompts that promise the largest gain, by Thompson sampling of each prompt's success rate."""
    return Method(
        group_size=group_size,
        curriculum=ThompsonSampling(fast, slow, value, sampled),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper=("VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation for Multimodal RL"),
    arxiv="2511.18902",
    label="paper read",
    parent="grpo",
    formula="""\
p_i from Beta(a_i + 1, b_i + 1);  a batch is the B prompts with the largest p_i (1 - p_i)^2
drawn: a <- l1 a + c, b <- l1 b + G - c;  not drawn: a <- l2 a, b <- l2 b""",
    differences=(
        Difference("what was read", "the framework figure and its caption", "not found", "both"),
        Difference("decays l1, l2", "those of the figure's numbers: 0.2, 0.999", "not found", "0.2, 0.999 (inferred)"),
        Difference("counts at the start", "not obtained", "not found", "0: the first draw is uniform (inferred)"),
        Difference("base", "GRPO or GSPO", "not found", "GRPO; curriculum is one field of any method"),
        Difference("with a filter and refills", "no refills", "not found", "a refill draws other prompts"),
        Difference("ablations", "p (1 - p); the posterior's mean", "not found", 'value = "variance"; sampled = false'),
        Difference("clip range, KL coefficient", "not obtained", "not found", "0.2, 0.04 (inferred)"),
        Difference("group size, minibatches", "8 in the figure; not obtained", "not found", "8; 1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[vade]",
        "tests/golden/test_budgets.py::test_posterior_counts",
        "tests/golden/test_budgets.py::test_value_of_a_success_rate",
    ),
    effect=Effect(
        metric="frac_reward_zero_std", direction="down", task="edges", parent="grpo", least=0.05, matched="steps"
    ),
)
