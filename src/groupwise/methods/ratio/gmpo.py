"""GMPO: Geometric-Mean Policy Optimization."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, PowerMeanRatio, UnclippedSurrogate, sequence_mean

__all__ = ["gmpo"]


def gmpo(
    *,
    group_size: int = 8,
    log_low: float = 0.4,
    log_high: float = 0.4,
    clamped_unit: Literal["token", "sequence"] = "token",
    minibatches: int = 8,
) -> Method:
    """The geometric mean of token ratios. Each token ratio is clipped, in a wide range; their mean is not.

    GRPO averages token ratios arithmetically, so a few extreme ratios dominate an update and make it unstable. The
    geometric mean is less sensitive to outliers, so its tokens can be clipped in a wider range, which leaves more room
    for exploration.

    Args:
        group_size: answers per prompt, G, at least 2.
        log_low: distance of the lower clip bound from 0 in log space, -log eps_1, at least 0.
        log_high: distance of the upper clip bound from 0 in log space, log eps_2, at least 0.
        clamped_unit: "token" bounds each token's log-ratio, "sequence" their sum, an ablation of the authors.
        minibatches: optimizer steps per iteration.
    """
    ratio = PowerMeanRatio(p=0.0, log_low=log_low, log_high=log_high, clamped_unit=clamped_unit)
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=UnclippedSurrogate(ratio), aggregate=sequence_mean),
        minibatches=minibatches,
        shuffle="samples",
    )


REFERENCE = PaperReference(
    paper="Geometric-Mean Policy Optimization",
    arxiv="2507.20673",
    evidence="code read",
    code="callsys/GMPO@205b2bf412f150cf96c29b33273b81bcd1a9b20f:train_zero_math_gmpo.py",
    parent="grpo",
    formula="""\
J = 1/G sum_i { prod_t min[ r_it^sgn(A_i), clip(r_it^sgn(A_i), eps_1, eps_2) ]^sgn(A_i) }^(1/|o_i|) A_i
(eps_1, eps_2) = (e^-0.4, e^0.4)
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("window", "(e^-0.4, e^0.4)", "-0.4 and 0.4 in log space", "log_low = log_high = 0.4"),
        PaperDifference("ablation with a clip of the sum", "named", "gmpo_seqclip", 'clamped_unit = "sequence"'),
        PaperDifference("clamp of a token's log-ratio", "none", "recalled", "within -20 and 20, before the mean"),
        PaperDifference(
            "unequal bounds for A < 0",
            "the two are swapped",
            "not swapped: -low and high for both signs",
            "as the code",
        ),
        PaperDifference("group size", "8", "8", "8"),
        PaperDifference("minibatches", "8 of 128 responses", "8 of 128 responses, shuffled", "8, shuffled by samples"),
        PaperDifference(
            "aggregate",
            "sequences, then groups",
            "sequences of a minibatch, groups ignored",
            "sequence_mean, because shuffled minibatches contain parts of groups",
        ),
        PaperDifference("std of a group", "not specified", "ddof 1, plus 1e-8", "ddof 1, plus 1e-6"),
        PaperDifference(
            "advantages that vary within an answer", "not defined", "one answer at a time; verl: their mean", "refused"
        ),
        PaperDifference(
            "answers cut by the budget",
            "not specified",
            "reward 0, from its code base",
            "none; add TruncatedAnswerReward(0) to shaping",
        ),
        PaperDifference("KL", "none", "beta 0", "none"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[gmpo]",
        "tests/golden/test_methods.py::test_whole_path[gmpo, sum]",
        "tests/golden/test_methods.py::test_worked_numbers[gmpo]",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=("method.minibatches = 8", "method.epochs = 4", "method.objective.penalties = []"),
        acted="clip_ratio/region_mean",
        acted_least=0.01,
        acted_in="parent",
        plan="whole",
    ),
)
