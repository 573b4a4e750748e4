"""Multi-objective GRPO: a weighted mean of several scores."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Objective, group_mean
from groupwise.rewards import AddWeightedMean, Score

__all__ = ["multi_objective_grpo"]


def multi_objective_grpo(
    *,
    group_size: int = 8,
    weights: tuple[tuple[str, float], ...] = (("chain_true", 1.0),),
    outcome: float = 0.0,
    kl: float = 0.04,
) -> Method:
    """GRPO on a weighted mean of several scores per answer, such as the heads of a reward model."""
    return Method(
        group_size=group_size,
        shaping=(Score(scale=outcome), AddWeightedMean(weights)),
        advantage=(Standardised(eps=1e-4),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=group_mean),
    )


REFERENCE = Reference(
    paper="Optimizing Safe and Aligned Language Generation: A Multi-Objective GRPO Approach",
    arxiv="2503.21819",
    label="paper read",
    parent="grpo",
    formula="""\
R_i = sum_k w_k R_k,i / sum_k w_k
A_i = (R_i - mean(R)) / std(R), GRPO's objective""",
    differences=(
        Difference("weights", "not obtained", "not released", "equal (inferred)"),
        Difference("reward model", "one encoder, one head per aspect", "not released", "any verifier with parts"),
        Difference("outcome", "none", "not released", "0: none; outcome = 1 adds the score"),
        Difference("KL, group size", "not obtained", "not released", "0.04 and 8 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[multi_objective_grpo]",
        "tests/golden/test_methods.py::test_whole_path[multi_objective_grpo, two parts]",
        "tests/golden/test_reward.py::test_weighted_mean_table",
    ),
    effect=Effect(
        metric="parts/chain_true",
        direction="up",
        task="calculator",
        parent="grpo",
        least=0.02,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16", "method.objective.penalties = []"),
    ),
)
