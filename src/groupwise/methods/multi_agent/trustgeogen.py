"""TrustGeoGen: problems whose every step can be verified, and rewards for verified steps."""

from typing import Literal

from groupwise.advantages import Standardised
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import AddSubscore, Correctness

__all__ = ["trustgeogen"]


def trustgeogen(
    *,
    group_size: int = 8,
    process: Literal["leading", "valid", "strict"] = "leading",
    weight: float = 0.5,
    clip: float = 0.2,
) -> Method:
    """GRPO on the task `deduction`: a reward for the reached goal, and for the share of verified steps.

    Answers can be correct with a false proof, and solutions that a model wrote are noisy. Formal rules verify every
    step here, and verified steps add reward; the use in reinforcement learning is our reading.

    Args:
        group_size: answers per prompt.
        process: "leading" (share of valid steps before an invalid one), "valid" (of all valid steps) or "strict".
        weight: weight of the reward for steps, lambda; unused by strict.
        clip: distance of both clip bounds from 1.
    """
    strict = process == "strict"
    return Method(
        group_size=group_size,
        shaping=(Correctness(),) if strict else (AddSubscore("reached"), AddSubscore(process, weight)),
        advantage=(Standardised(),),
        objective=Objective(surrogate=Clip(clip, clip), aggregate=token_mean),
    )


REFERENCE = PaperReference(
    paper="TrustGeoGen: Formal-Verified Data Engine for Trustworthy Multi-modal Geometric Problem Solving",
    arxiv="2504.15780",
    evidence="our reading",
    contribution_kind="task",
    parent="grpo",
    formula="""\
a step is valid if it is a rule whose premises are facts or conclusions of earlier valid steps
R = [goal reached] + lambda (leading valid steps / steps);  strict: R = [goal reached and all steps valid]""",
    differences=(
        PaperDifference(
            "problems", "figures and theorems of geometry", "not found", "the task deduction: facts and rules"
        ),
        PaperDifference(
            "selection",
            "by the length of the path and its share of the premises",
            "not found",
            "paths of 1 and 2 steps",
        ),
        PaperDifference("verification", "formal rules, forward chaining", "not found", "the verifier proof_steps"),
        PaperDifference("use", "supervised training", "not found", "reinforcement learning (inferred)"),
        PaperDifference("process reward", "not part of the paper", "not found", "leading, valid (mean) or strict"),
        PaperDifference(
            "translation, figures, solutions with backtracking", "parts of the engine", "not found", "left out"
        ),
        PaperDifference("weight lambda", "not part of the paper", "not found", "0.5 (inferred)"),
        PaperDifference("group size, clip range", "not part of the paper", "not found", "8 and 0.2 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[trustgeogen]",
        "tests/golden/test_methods.py::test_whole_path[trustgeogen, strict]",
        "tests/golden/test_agents.py::test_verified_steps",
        "tests/golden/test_agents.py::test_rewards_of_verified_steps",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="deduction",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
    ),
)
