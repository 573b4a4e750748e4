"""REINFORCE: the policy gradient, with the batch's mean as baseline."""

from groupwise.advantages import Whitened
from groupwise.methods.method import Method
from groupwise.methods.reference import PaperDifference, PaperReference
from groupwise.objective import Objective, policy_gradient, sequence_sum

__all__ = ["reinforce"]


def reinforce(*, group_size: int = 1) -> Method:
    """The gradient of the log-prob of whole answers, weighted by their whitened rewards. One step, without a ratio.

    The gradient of the expected reward is unknown if the reward is only a number for each sampled answer. REINFORCE
    estimates it from the samples alone: the gradient of each answer's log-prob, weighted by its reward minus a
    baseline, here the mean of the batch.

    Args:
        group_size: answers per prompt, at least 1.
    """
    return Method(
        group_size=group_size,
        advantage=(Whitened(),),
        objective=Objective(surrogate=policy_gradient, aggregate=sequence_sum),
    )


REFERENCE = PaperReference(
    paper="Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning",
    year=1992,
    evidence="code read earlier",
    parent="",
    formula="""\
grad J = 1/N sum_i A_i grad log pi(y_i | x_i),  A_i = (R_i - mean(R)) / std(R) over the batch
log pi(y | x) = sum_t log pi(y_t | x, y_<t)""",
    differences=(
        PaperDifference("baseline", "any constant", "oat: none or of the group; TRL: of the group", "the batch's mean"),
        PaperDifference("std", "none", "TRL: optional", "of the batch"),
        PaperDifference(
            "aggregate", "sum over steps", "oat: masked mean per sequence", "sequence_sum: the log-probs add up"
        ),
        PaperDifference("group size", "1", "any", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[reinforce]",
        "tests/golden/test_start.py::test_reinforce_is_the_policy_gradient",
    ),
    unmeasured_reason="It is a root: there is no method to compare it with.",
    toy_test="tests/golden/test_start.py::test_reinforce_is_the_policy_gradient",
)
