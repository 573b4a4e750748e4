"""HölderPO: the power mean of token ratios, with an exponent that falls over the run."""

import math
from typing import Literal

from groupwise.advantages import Standardised
from groupwise.data import Surrogate
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.methods.schedules import CurvedRamp, LinearRamp
from groupwise.objective import Clip, Objective, PowerMeanRatio, UnclippedSurrogate, group_mean

__all__ = ["holder_po"]


def holder_po(
    *,
    group_size: int = 8,
    start_value: float = 2.0,
    end: float = -2.0,
    over: int = 500,
    shape: Literal["linear", "cosine", "cubic", "power"] = "linear",
    clip: float = 0.2,
    form: Literal["sequence", "token"] = "sequence",
    minibatches: int = 8,
) -> Method:
    """One ratio per sequence: the power mean of its token ratios, whose exponent falls from 2 to -2.

    Every fixed mean of token ratios, the paper argues, either concentrates the gradient too much and collapses, or
    learns too little. A high exponent at first amplifies tokens that became more likely, and a low exponent later
    bounds the variance of the gradient.

    Args:
        group_size: answers per prompt, G, at least 2.
        start_value: exponent of the mean at the first iteration, p.
        end: exponent of the mean after `over` iterations, p.
        over: length of the schedule in iterations; 0 is the whole run.
        shape: curve of the exponent from `start_value` to `end`.
        clip: distance of both clip bounds from 1, eps.
        form: "sequence" clips the mean, "token" clips the token ratios before it.
        minibatches: optimizer steps per iteration.
    """
    surrogate = Clip(clip, clip, PowerMeanRatio(start_value)) if form == "sequence" else _token_form(start_value, clip)
    schedule = LinearRamp(start_value, end, over) if shape == "linear" else CurvedRamp(start_value, end, over, shape)
    return Method(
        group_size=group_size,
        advantage=(Standardised(ddof=1, eps=1e-8),),
        objective=Objective(surrogate=surrogate, aggregate=group_mean),
        minibatches=minibatches,
        schedules=(("objective.surrogate.ratio.p", schedule),),
    )


def _token_form(p: float, clip: float) -> Surrogate:
    """Token ratios clipped before their mean, as in GMPO."""
    return UnclippedSurrogate(PowerMeanRatio(p, log_low=-math.log1p(-clip), log_high=math.log1p(clip)))


REFERENCE = PaperReference(
    paper="Hölder Policy Optimisation",
    arxiv="2605.12058",
    evidence="code read",
    code="YihangChen9/HolderPO@73bcbc5f85995498b9b626ee22325009244f018f:train_zero_math_holder.py",
    parent="gspo",
    formula="""\
J = 1/G sum_i min[ rho_i A_i, clip(rho_i, 1 - eps, 1 + eps) A_i ]
rho_i = ( 1/|o_i| sum_t r_it^p )^(1/p); p falls from 2 to -2; p = 0 is the geometric mean
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("exponent", "decreases", "linear from 2 to -2 over 500 rounds", "LinearRamp(2, -2, 500)"),
        PaperDifference("other curves", "named", "cosine, cubic, power", "shape"),
        PaperDifference("clip of tokens before the mean", "ablation", "holder_token", 'form = "token"'),
        PaperDifference("clamp of every token at both sides", "not obtained", "sequence_w_clip", "not offered"),
        PaperDifference("clip range", "0.2", "0.2", "0.2"),
        PaperDifference("std of a group", "not specified", "ddof 1, plus 1e-8", "ddof 1, plus 1e-8"),
        PaperDifference(
            "answers cut by the budget",
            "not specified",
            "reward 0, in the group's statistics",
            "none; add TruncatedAnswerReward(0) to shaping",
        ),
        PaperDifference("group size, minibatches", "8; not obtained", "8 and 8", "8 and 8"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[holder_po]",
        "tests/golden/test_methods.py::test_whole_path[holder_po, tokens]",
        "tests/golden/test_methods.py::test_whole_path[holder_po, p = -2]",
        "tests/golden/test_ratio.py::test_power_means",
        "tests/golden/test_ratio.py::test_worked_numbers[holder_po, p = 2]",
        "tests/golden/test_ratio.py::test_holder_curves",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="gspo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.minibatches = 8", "method.objective.penalties = []"),
        own_settings=(
            (
                'method.schedules = {"objective.surrogate.ratio.p" = '
                '{kind = "LinearRamp", start_value = 2.0, end_value = -2.0}}'
            ),
        ),
    ),
)
