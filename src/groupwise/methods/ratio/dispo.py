"""DISPO: decoupled clipping of importance weights for correct and incorrect answers."""

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import ClippedWeight, GatedSurrogate, Objective, positive_advantage, token_mean
from groupwise.rewards import mixed_outcomes

__all__ = ["dispo"]


def dispo(
    *,
    group_size: int = 16,
    right: tuple[float, float] = (0.8, 1.28),
    wrong: tuple[float, float] = (0.0, 5.0),
    minibatches: int = 16,
) -> Method:
    """CISPO with separate bounds of the importance weight for correct and for incorrect answers.

    CISPO learns fast but can collapse, because its gradients do not vanish far from the old policy, and PPO's clip is
    stable but slow. DISPO bounds the weights of correct and incorrect answers separately, since each bound has another
    effect; form and constants are our reading.

    Args:
        group_size: answers per prompt, at least 2.
        right: lower and upper bound of the weight for A > 0, 1 - eps_low+ and 1 + eps_high+.
        wrong: lower and upper bound of the weight for A <= 0, 1 - eps_low- and 1 + eps_high-.
        minibatches: optimizer steps per iteration.
    """
    surrogate = GatedSurrogate(
        positive_advantage, selected_surrogate=ClippedWeight(*right), other_surrogate=ClippedWeight(*wrong)
    )
    return Method(
        group_size=group_size,
        filter=mixed_outcomes,
        max_refills=10,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="DISPO: Enhancing Training Efficiency and Stability in Reinforcement Learning for Large Language Model "
    "Mathematical Reasoning",
    arxiv="2602.00983",
    evidence="our reading",
    parent="cispo",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t sg[r^_it] A_i log pi(o_it | q, o_i<t)
r^_it = clip(r_it, 1 - eps_low+, 1 + eps_high+) for a correct answer
r^_it = clip(r_it, 1 - eps_low-, 1 + eps_high-) for an incorrect answer
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference(
            "objective", "in words: REINFORCE with decoupled clips", "not found", "CISPO's form (inferred)"
        ),
        PaperDifference("bounds of correct answers", "not obtained", "not found", "0.8 and 1.28, absolute (inferred)"),
        PaperDifference("bounds of incorrect answers", "not obtained", "not found", "0 and 5, absolute (inferred)"),
        PaperDifference(
            "correct", "by the verifier", "not found", "A > 0: the same for mixed groups of binary rewards"
        ),
        PaperDifference("aggregate", "not obtained", "not found", "token_mean, as CISPO and DAPO (inferred)"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "16 and 16, as CISPO (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[dispo]",
        "tests/golden/test_ratio.py::test_worked_numbers[dispo]",
        "tests/golden/test_ratio.py::test_worked_numbers[dispo, tight]",
        "tests/golden/test_ratio.py::test_dispo_classes_are_independent",
    ),
    expected_effect=ExpectedEffect(
        metric="entropy",
        direction="up",
        task="hinted_sums",
        parent="cispo",
        min_difference=0.02,
        runs_matched_by="tokens",
        settings=("iterations = 10", "method.minibatches = 8", "method.objective.penalties = []"),
        acted="clip_ratio/region_mean",
        acted_least=0.01,
    ),
)
