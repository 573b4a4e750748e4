"""HORA: Hit-Utility Optimal Rollout Allocation."""

from groupwise.advantages import Standardised
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import KL, Clip, Objective, group_mean
from groupwise.rollout import Pilots

__all__ = ["hora"]


def hora(
    *,
    group_size: int = 8,
    pilots: int = 4,
    prior: tuple[float, float] = (1.0, 1.0),
    clip: float = 0.2,
    kl: float = 0.04,
    minibatches: int = 1,
) -> Method:
    """GRPO with half of the answers as pilots, and the others where a first correct answer is most likely to come."""
    return Method(
        group_size=group_size,
        strategy=Pilots(pilots, prior),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl),), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Where to Spend Rollouts: Hit-Utility Optimal Rollout Allocation for Group-Based RLVR",
    arxiv="2605.07114",
    label="our reading",
    parent="grpo",
    formula="""\
max sum_i H_i(n_i) with sum_i n_i = E, the answers of the round beyond its pilots
H_i(n) = 1 - E[(1 - p)^n] = 1 - prod over j < n of (b_i + j) / (a_i + b_i + j),  p from Beta(a_i, b_i)
a_i = a + correct pilots, b_i = b + other pilots, with the prior Beta(a, b)""",
    differences=(
        Difference("what was read", "abstract and table of contents", "not found", "both"),
        Difference("posterior", "after earlier answers, not specified", "not found", "after pilots (inferred)"),
        Difference("pilots of a group", "not obtained", "not found", "4 of 8 (inferred)"),
        Difference("prior", "uniform; learned ones are no better", "not found", "1, 1: uniform"),
        Difference("allocation batch", "not obtained", "not found", "a sampling round (inferred)"),
        Difference("base", "GRPO; RLOO also works", "not found", "GRPO; strategy is one field of any method"),
        Difference("most answers to a prompt", "not obtained", "not found", "no bound"),
        Difference("clip range, KL coefficient", "not obtained", "not found", "0.2, 0.04 (inferred)"),
        Difference("minibatches", "not obtained", "not found", "1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[hora]",
        "tests/golden/test_budgets.py::test_hit_utility",
        "tests/golden/test_budgets.py::test_further_answers_are_the_best_of_all",
        "tests/golden/test_budgets.py::test_pilots_share_a_budget",
    ),
    effect=Effect(
        metric="groups/all_wrong", direction="down", task="tiny_countdown", parent="grpo", least=0.03, matched="steps"
    ),
)
