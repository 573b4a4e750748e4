"""AsymGRPO: asymmetric advantages from the odds of a prompt."""

from groupwise.advantages import OddsAdvantage
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import mixed_outcomes

__all__ = ["asym_grpo"]


def asym_grpo(
    *,
    group_size: int = 8,
    right: float = 0.75,
    wrong: float = 0.5,
    low: float = 0.2,
    high: float = 0.28,
    minibatches: int = 1,
) -> Method:
    """Advantages are powers of the group's odds, with one exponent for correct answers and one for the others."""
    return Method(
        group_size=group_size,
        filter=mixed_outcomes,
        refill=10,
        advantage=(OddsAdvantage(right, wrong),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Asymmetric Advantage Modulation Calibrates Entropy Dynamics in RLVR",
    arxiv="2604.04894",
    label="our reading",
    parent="dapo",
    formula="""\
A_i = ((1 - p) / p)^k+ if correct, - (p / (1 - p))^k- if not; p the pass rate of the group
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_i, clip(r_it, 0.8, 1.28) A_i ]""",
    differences=(
        Difference("two exponents", "two channels, scaled apart", "not found", "above (inferred)"),
        Difference("exponents", "not obtained", "not found", "0.75 and 0.5 (inferred); 1/2 and 1/2 is GRPO"),
        Difference("largest advantage", "not obtained", "not found", "10 (inferred)"),
        Difference("clip range, aggregate", "not obtained", "not found", "0.2 and 0.28, tokens, as DAPO (inferred)"),
        Difference("group size", "not obtained", "not found", "8 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[asym_grpo]",
        "tests/golden/test_reward.py::test_odds_table",
    ),
    effect=Effect(
        metric="entropy",
        direction="up",
        task="hinted_sums",
        parent="dapo",
        least=0.02,
        matched="tokens",
        settings=(
            "iterations = 10",
            "evaluate.problems = 16",
            "method.minibatches = 8",
            "method.objective.penalties = []",
        ),
    ),
)
