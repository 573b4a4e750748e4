"""GSPO-token: GSPO for advantages that differ within a sequence."""

from groupwise.advantages import Standardised
from groupwise.methods.effect_settings import GSPO_BOUNDS
from groupwise.methods.method import Method
from groupwise.methods.reference import PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, group_mean, sequence_ratio_per_token

__all__ = ["gspo_token"]


def gspo_token(*, group_size: int = 16, low: float = 3e-4, high: float = 4e-4, minibatches: int = 4) -> Method:
    """GSPO with a gradient per token. It equals GSPO if all tokens of a sequence have the same advantage.

    GSPO has one advantage for a whole answer, so it cannot use advantages that differ between tokens, as in
    conversations of several turns. Each token keeps the value of the answer's ratio, but gets the gradient through its
    log-prob alone, weighted by its advantage.

    Args:
        group_size: answers per prompt, G, at least 2.
        low: distance of the lower clip bound from 1, eps_low.
        high: distance of the upper clip bound from 1, eps_high.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(low, high, ratio=sequence_ratio_per_token), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Group Sequence Policy Optimization, section 4.3",
    arxiv="2507.18071",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    parent="gspo",
    formula="""\
J = 1/G sum_i 1/|y_i| sum_t min[ s_it A_it, clip(s_it, 1 - eps_low, 1 + eps_high) A_it ]
s_it = sg[s_i] pi(y_it | x, y_i<t) / sg[pi(y_it | x, y_i<t)]
s_i = exp( 1/|y_i| sum_t log(pi(y_it) / pi_old(y_it)) )""",
    differences=(
        PaperDifference(
            "clip range", "3e-4 and 4e-4, stated for GSPO", "not released; verl the same", "3e-4 and 4e-4 (inferred)"
        ),
        PaperDifference("minibatches", "4, stated for GSPO", "not released; verl 4", "4 (inferred)"),
        PaperDifference("group size", "not specified", "not released; verl examples 16", "16 (inferred)"),
        PaperDifference(
            "advantage",
            "one per token, given",
            "verl: the group's, on every token",
            "the group's; a credit may vary it per token",
        ),
        PaperDifference("exponent's clamp", "none", "verl: at most 10", "within -20 and 20"),
        PaperDifference(
            "aggregate",
            "tokens, sequences, groups",
            "verl: forced to sequences, groups ignored",
            "group_mean; a token mean is refused",
        ),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[gspo_token]",
        "tests/golden/test_methods.py::test_worked_numbers[gspo_token]",
    ),
    tuned_settings=GSPO_BOUNDS,
    unmeasured_reason="It equals GSPO to the bit where all tokens of an answer have one advantage.",
)
