"""FGRPO: Faithful GRPO, with constraints on the reasoning."""

from groupwise.advantages import Lagrangian, Multipliers
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, group_mean

__all__ = ["fgrpo"]


def fgrpo(
    *,
    group_size: int = 8,
    floors: tuple[tuple[str, float], ...] = (("chain_true", 0.95),),
    rate: float = 0.05,
    minibatches: int = 1,
) -> Method:
    """Adds z-scores of constraints (verdict parts). Their multipliers grow while a part's mean is below its floor."""
    return Method(
        group_size=group_size,
        advantage=(Lagrangian(tuple(name for name, _ in floors)),),
        objective=Objective(aggregate=group_mean),
        memory=(("multipliers", Multipliers(floors, rate)),),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Faithful GRPO: Improving Visual Spatial Reasoning via Constrained Policy Optimization",
    arxiv="2604.08476",
    label="our reading",
    parent="grpo",
    formula="""\
A_i = z(R)_i + sum_k lambda_k z(c_k)_i, z the z-score in the group
lambda_k <- clip(lambda_k + rate (floor_k - mean(c_k)), 0, 5) after each step""",
    differences=(
        Difference("sum of z-scores", "decoupled advantages", "not found", "above (inferred)"),
        Difference("dual step", "dual ascent on the batch", "not found", "above, after the iteration (inferred)"),
        Difference("floors, rate, largest multiplier", "not obtained", "not found", "0.95, 0.05, 5 (inferred)"),
        Difference(
            "constraints",
            "two judges and grounding",
            "not found",
            "parts of the verdict; here chain_true of the calculator",
        ),
        Difference("supervised phase before", "yes", "not found", "[[phase]] tables of a recipe"),
        Difference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[fgrpo]",
        "tests/golden/test_reward.py::test_fgrpo_advantages",
        "tests/golden/test_reward.py::test_multipliers",
    ),
    effect=Effect(
        metric="parts/chain_true",
        direction="up",
        task="calculator",
        parent="grpo",
        least=0.02,
        matched="steps",
        settings=(
            "iterations = 10",
            "evaluate.problems = 16",
            "method.objective.penalties = []",
        ),
    ),
    finding="In ten iterations the multiplier stays too small to act: it grows by less than 0.05 per iteration.",
)
