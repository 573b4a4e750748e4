"""TEMPO: Tree-Estimated Mean Prefix Value."""

from groupwise.advantages import BranchDifference, Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, group_mean

__all__ = ["tempo"]


def tempo(*, group_size: int = 8, clip: float = 0.2, minibatches: int = 1) -> Method:
    """GRPO with a bonus at tokens where a group's answers branch: the change of the mean advantage along the branch."""
    return Method(
        group_size=group_size,
        advantage=(Standardised(ddof=0),),
        credit=BranchDifference(),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Exploiting Tree Structure for Credit Assignment in RL Training of LLMs",
    arxiv="2509.18314",
    label="our reading",
    parent="grpo",
    formula="""\
A_it = R~_i + V(o_i<=t) - V(o_i<t),  R~_i = (R_i - mean(R)) / std(R)
V(prefix) = mean of R~ over the group's answers that begin with it""",
    differences=(
        Difference("sum of both terms", "the correction is added", "not found", "with weight 1 (inferred)"),
        Difference("std of a group", "not specified", "not found", "ddof 0, plus 1e-6 (inferred)"),
        Difference("first token", "not specified", "not found", "has a difference; BranchDifference(first = false)"),
        Difference("group size, clip range", "not obtained", "not found", "8 and 0.2 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[tempo]",
        "tests/golden/test_reward.py::test_branch_difference",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("method.objective.penalties = []",),
    ),
)
