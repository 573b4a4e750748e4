"""Knapsack RL: the answers of a batch, distributed over its prompts."""

from groupwise.advantages import Bounded, Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import DualClip, Objective, token_mean
from groupwise.rollout import Knapsack

__all__ = ["knapsack_rl"]


def knapsack_rl(
    *,
    group_size: int = 8,
    least: int = 2,
    most: int = 128,
    confidence: float = 0.9,
    bound: float = 5.0,
    minibatches: int = 8,
) -> Method:
    """GRPO with groups of unequal size: more answers go where they most likely differ and teach most."""
    return Method(
        group_size=group_size,
        curriculum=Knapsack(least, most, confidence=confidence),
        advantage=(Standardised(), Bounded(bound)),
        objective=Objective(surrogate=DualClip(0.2, 0.28, 10.0), aggregate=token_mean),
        minibatches=minibatches,
        shuffle="samples",
    )


REFERENCE = Reference(
    paper="Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation",
    arxiv="2509.25849",
    label="code read",
    code="liziniu/KnapsackRL@ca5d5f5b7e933378d916d05d1aeb4ae9de929ee5:verl/trainer/ppo/exploration_utils.py",
    parent="dapo",
    formula="""\
max sum_i V(n_i, p_i) with sum_i n_i = N B and least <= n_i <= most
V(n, p) = [1 - p^n - (1 - p)^n] p (1 - p)^2
p_i = mean of the newest 16 outcomes; n_i = N with fewer than 8 outcomes, n_i = least at p_i = 0 and 1
a surplus beyond sum_i log(1 - c) / log max(p_i, 1 - p_i) goes to prompts with p_i = 0""",
    differences=(
        Difference("solver", "dynamic programming", "dynamic programming", "one by one: exact, as V is concave in n"),
        Difference("a prompt without extra answers", "V(least, p)", "valued 0", "V(least, p)"),
        Difference("who gets the surplus", "not obtained", "p = 0, also unknown prompts", "p = 0, else all but mixed"),
        Difference("all prompts mixed, with a surplus", "not obtained", "fails its sum check", "all to the allocation"),
        Difference("least, most, confidence", "not obtained", "2 (also at p = 0 and 1), 128, 0.9", "2, 128, 0.9"),
        Difference("outcomes kept, enough", "not obtained", "16, 8", "16, 8"),
        Difference("bound of the advantage", "not obtained", "5", "5"),
        Difference("clip range", "not obtained", "0.2 and 0.28, dual clip 10", "0.2 and 0.28, dual clip 10"),
        Difference("cap of the ratio", "not obtained", "2, after the mean: no effect", "none"),
        Difference(
            "group size, minibatches", "8; not obtained", "8; 8 of shuffled answers", "8; 8 of shuffled answers"
        ),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[knapsack_rl]",
        "tests/golden/test_methods.py::test_whole_path[knapsack_rl, bound 1]",
        "tests/golden/test_budgets.py::test_worked_allocations",
        "tests/golden/test_budgets.py::test_allocation_equals_dynamic_programming",
    ),
    effect=Effect(
        metric="frac_reward_zero_std", direction="down", task="edges", parent="grpo", least=0.05, matched="steps"
    ),
)
