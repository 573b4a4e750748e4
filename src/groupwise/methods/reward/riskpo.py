"""RiskPO: Risk-based Policy Optimization."""

from typing import Literal

from groupwise.advantages import BundleRisk, Quantiles
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, token_mean

__all__ = ["riskpo"]


def riskpo(
    *,
    group_size: int = 10,
    size: int = 5,
    low: float = 0.2,
    high: float = 0.8,
    split: Literal["uniform", "score", "std", "sum-mean"] = "sum-mean",
    minibatches: int = 4,
) -> Method:
    """Scores bundles of prompts. The advantage is steepest at low bundle scores, and constant at the highest."""
    return Method(
        group_size=group_size,
        advantage=(BundleRisk(size, low, high, split=split),),
        objective=Objective(aggregate=token_mean),
        memory=(("quantiles", Quantiles(size)),),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
    arxiv="2510.00911",
    label="code read",
    code="RTkenny/RiskPO@65ec40c935f5726aa2d80160d9056b1236d5551e:verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
R_j = sum of the j-th answers' rewards over a bundle of B prompts; q_a, q_b its quantiles at a and b
A_j = ( w V_j + U_j ) / (w + 1) / std of the bundle
V_j = - (q_a - R_j)+ / a,  U_j = [ (R_j - q_a)+ - (R_j - q_b)+ ] / (b - a)""",
    differences=(
        Difference("objective", "risk measure of the quantile range", "the weighted sum above", "the code's"),
        Difference("ratio", "of the sequence", "of each token", "of each token"),
        Difference("quantiles", "tracked", "computed, then not used", "tracked, used from the second iteration on"),
        Difference("equal scores of a bundle", "not specified", "divided by 1e-6", "std 1 (inferred)"),
        Difference("a, b, B, w", "0.2, 0.8 or 0.9, 5", "0.2, 0.8, 5, 1.5", "0.2, 0.8, 5, 1.5"),
        Difference("split among answers", "not obtained", "sum-mean for hard data, std for easy", "sum-mean"),
        Difference("group size, minibatches", "10; 4", "10; 4", "10; 4"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[riskpo]",
        "tests/golden/test_reward.py::test_risk_table",
        "tests/golden/test_reward.py::test_tracked_quantile",
        "tests/golden/test_reward.py::test_sum_mean_split",
    ),
    effect=Effect(
        metric="entropy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        least=0.02,
        matched="steps",
        settings=("iterations = 10", "evaluate.problems = 16", "prompts = 10", "method.objective.penalties = []"),
    ),
)
