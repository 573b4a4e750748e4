"""CTPO: Cumulative Token Policy Optimization."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import LogClip, Objective, SequenceTruncatedImportance, token_mean

__all__ = ["ctpo"]


def ctpo(
    *, group_size: int = 8, low: float = 0.025, high: float = 0.05, power: float = 0.5, minibatches: int = 16
) -> Method:
    """The product of ratios up to each token, in a clip range that grows with the root of its position."""
    surrogate = LogClip(low, high, cap=high, power=power)
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, weights=(SequenceTruncatedImportance(5.0),), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Rethinking Importance Sampling in LLM Policy Optimization: A Cumulative Token Perspective",
    arxiv="2605.07331",
    label="code read",
    parent="grpo",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t u_it
L_it = sg[ sum_(u <= t) log r_iu ] + log pi - sg[log pi], at most 10
u_it = min[ exp(L_it) A_i, exp(clip(L_it, -a_low t^p, a_high t^p)) A_i ], and for A_i < 0 at least exp(a_cap t^p) A_i
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        Difference("a_low, a_high, a_cap, p", "not obtained", "0.025, 0.05, 0.05, 0.5", "0.025, 0.05, 0.05, 0.5"),
        Difference("p", "1/2", "the class defaults to 0, the script passes 0.5", "0.5"),
        Difference("minibatches", "not obtained", "16", "16"),
        Difference("group size", "not obtained", "8", "8"),
        Difference("engine's gap", "not obtained", "sequence-level TIS, 5", "SequenceTruncatedImportance(5)"),
        Difference("position", "of the token", "counts the trained tokens", "counts the trained tokens"),
        Difference("floor of the log of the product", "not obtained", "none", "-20"),
        Difference("std of a group", "not obtained", "ddof 1, plus 1e-6", "ddof 1, plus 1e-6"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[ctpo]",
        "tests/golden/test_ratio.py::test_worked_numbers[ctpo]",
        "tests/golden/test_ratio.py::test_ctpo_example",
        "tests/golden/test_ratio.py::test_prefix_ratio_corrects_the_prefix",
    ),
    effect=Effect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.05,
        matched="steps",
        settings=("method.minibatches = 8", "method.objective.penalties = []"),
    ),
    toy="tests/golden/test_ratio.py::test_prefix_ratio_corrects_the_prefix",
)
