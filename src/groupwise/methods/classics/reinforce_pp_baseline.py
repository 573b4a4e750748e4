"""REINFORCE++-baseline: REINFORCE++ with the group's mean as baseline."""

from groupwise.advantages import WhitenedTokens, centred
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Clip, Objective, token_mean

__all__ = ["reinforce_pp_baseline"]


def reinforce_pp_baseline(*, group_size: int = 8, clip: float = 0.2, kl: float = 1e-3, minibatches: int = 8) -> Method:
    """The group's mean as baseline without its std, whitened over all tokens of the iteration; k2 KL in the loss.

    The standard deviation of a small group, the paper argues, is noisy, and division by it biases the gradient. Here
    the baseline comes from the group, the scale from all tokens of the batch, and the KL moves into the loss; its k2
    form is our reading.

    Args:
        group_size: answers per prompt, at least 2.
        clip: distance of both clip bounds of the ratio from 1, eps.
        kl: weight of the KL penalty to the initial policy, beta, at least 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(centred,),
        credit=WhitenedTokens(ddof=1),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl, kl_estimator="k2"),), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models",
    arxiv="2501.03262",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    parent="reinforce_pp",
    formula="""\
A_i = R_i - mean(R) of the group; A^_it = (A_i - mean) / std over the batch's tokens
J = mean over tokens of min[ r_t A^_t, clip(r_t, 1 - eps, 1 + eps) A^_t ] - beta (log pi - log pi_ref)^2 / 2""",
    differences=(
        PaperDifference("KL", "in the loss", "OpenRLHF: k2 or k3 in the loss (recalled)", "k2 in the loss (inferred)"),
        PaperDifference("whitening", "over the batch", "verl over tokens, ms-swift over answers", "tokens, ddof 1"),
        PaperDifference(
            "solved groups",
            "no advantage",
            "a small one: the mean over tokens is not 0",
            "as the code: see WhitenedTokens",
        ),
        PaperDifference("KL coefficient", "0.001 for reasoning (recalled)", "OpenRLHF 0.01", "0.001"),
        PaperDifference("group size, minibatches", "not obtained", "OpenRLHF: any; 8", "8; 8"),
        PaperDifference("clip range", "0.2 (recalled)", "OpenRLHF 0.2", "0.2"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[reinforce_pp_baseline]",
        "tests/golden/test_start.py::test_whitening_moves_a_solved_group",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="reinforce_pp",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.minibatches = 8",),
    ),
)
