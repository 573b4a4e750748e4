"""SEED-GRPO: semantic entropy scales the update of each prompt."""

from typing import Literal

from groupwise.advantages import SemanticEntropy, centred
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, budget_mean

__all__ = ["seed_grpo"]


def seed_grpo(
    *, group_size: int = 8, alpha: float = 1.0, form: Literal["exp", "linear", "focal"] = "exp", minibatches: int = 1
) -> Method:
    """Dr. GRPO's advantage times a factor that falls with the entropy of the group's final answers."""
    return Method(
        group_size=group_size,
        advantage=(centred, SemanticEntropy(alpha, form)),
        objective=Objective(aggregate=budget_mean),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
    arxiv="2505.12346",
    label="our reading",
    parent="dr_grpo",
    formula="""\
A_i = (R_i - mean(R)) f(alpha SE / log G),  f(x) = exp(-x), 1 - x or (1 - x)^2
SE = - 1/K sum_k log(share of answer k), over the K distinct answers of the group""",
    differences=(
        Difference("f and alpha", "three forms compared", "not released", "exp with alpha 1 (inferred)"),
        Difference("share of an answer", "sum of sequence probabilities", "not released", "its frequency (inferred)"),
        Difference("equal answers", "the same meaning", "not released", "equal text that the verifier read (inferred)"),
        Difference("no answer found", "not specified", "not released", "a distinct answer (inferred)"),
        Difference("entropy", "over the distinct answers", "not released", 'sampled; estimate = "shannon"'),
        Difference("base", "mean without std", "not released", "Dr. GRPO"),
        Difference("length divisor", "not obtained", "not released", "the budget max_tokens, one number (Dr. GRPO)"),
        Difference("group size", "not obtained", "not released", "8 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[seed_grpo]",
        "tests/golden/test_reward.py::test_semantic_entropy",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="mixed_sums",
        parent="dr_grpo",
        least=0.02,
        matched="steps",
    ),
)
