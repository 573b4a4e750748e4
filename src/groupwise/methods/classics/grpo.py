"""GRPO: Group Relative Policy Optimization."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Clip, Objective, group_mean

__all__ = ["grpo"]


def grpo(*, group_size: int = 64, clip: float = 0.2, kl: float = 0.04) -> Method:
    """Group z-scores as advantage, PPO's clip, k3 KL to the initial policy in the loss, mean per group (equation 3).

    PPO needs a critic about as large as the policy, and its values per token are hard to fit if only the last token has
    a reward. The mean and standard deviation of a group of answers to one prompt replace the critic, and the KL penalty
    moves from the reward into the loss.

    Args:
        group_size: answers per prompt, G, at least 2.
        clip: distance of both clip bounds of the ratio from 1, eps.
        kl: weight of the KL penalty to the initial policy, beta, at least 0.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl, kl_estimator="k3"),), aggregate=group_mean),
    )


REFERENCE = PaperReference(
    paper="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    arxiv="2402.03300",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    formula="""\
J = 1/G sum_i 1/|o_i| sum_t { min[ r_it A_it, clip(r_it, 1 - eps, 1 + eps) A_it ] - beta D_it }
r_it = pi(o_it | q, o_i<t) / pi_old(o_it | q, o_i<t)
A_it = (R_i - mean(R)) / std(R)
D_it = pi_ref / pi - log(pi_ref / pi) - 1""",
    differences=(
        PaperDifference("group size", "64 (recalled)", "not released; verl example 5, TRL 8", "64"),
        PaperDifference("KL coefficient", "0.04 (recalled)", "not released; verl 0.001, TRL 0", "0.04"),
        PaperDifference(
            "KL form",
            "k3 in the loss",
            "verl: k3 (low_var_kl)",
            'k3; form = "corrected" is better: k3\'s gradient is not that of KL(pi || ref), arXiv:2506.09477',
        ),
        PaperDifference(
            "KL of a token beyond log(ref / pi) = 20",
            "unbounded",
            "verl: x within +-20, k3 within +-10 (recalled)",
            "x at most 20: no gradient",
        ),
        PaperDifference("clip range", "eps, no value", "verl and TRL 0.2", "0.2 (inferred)"),
        PaperDifference("std of a group", "not specified", "verl, TRL, oat, OpenRLHF: ddof 1", "ddof 1"),
        PaperDifference(
            "added to the std", "nothing", "verl 1e-6, oat 1e-8, TRL 1e-4", "1e-6; equal rewards give exactly 0"
        ),
        PaperDifference(
            "aggregate",
            "tokens, then sequences, then groups",
            'verl and TRL now default to the token mean; before: over sequences, groups ignored ("sequence_mean")',
            "group_mean; equal to the bit if groups have equally many live members",
        ),
        PaperDifference("updates per sampling", "1 (recalled)", "verl and TRL: several", "1"),
        PaperDifference("reference", "the policy at the start of each outer round", "fixed", "the start of the run"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[grpo]",
        "tests/golden/test_methods.py::test_worked_numbers[grpo]",
        "tests/golden/test_methods.py::test_worked_advantages[grpo]",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="mixed_sums",
        parent="reinforce",
        min_difference=0.02,
        runs_matched_by="iterations",
        plan="whole",
        first_seed=200,
    ),
)
