"""Multi-objective GRPO: a weighted mean of several scores."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, NeededMeasure, Shaping, Subscore
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, group_mean
from groupwise.rewards import Score

__all__ = ["AddWeightedMean", "multi_objective_grpo"]


@dataclass(frozen=True, slots=True)
class AddWeightedMean(Shaping):
    """Adds the weighted mean of several named scores of the verdict; missing ones are left out. arXiv:2503.21819.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([0.0, 0.0], subscores={"safe": [1.0, 0.0], "useful": [0.5, 1.0]})])
    >>> AddWeightedMean((("safe", 3.0), ("useful", 1.0)))(batch.verdict_score, batch).tolist()
    [0.875, 0.25]
    """

    weights: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if not any(weight > 0 for _, weight in self.weights) or any(weight < 0 for _, weight in self.weights):
            raise ValueError(f"{self}: needs every weight >= 0, and at least one above 0")

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset(Subscore(name) for name, _ in self.weights)

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        total, weight = torch.zeros_like(reward), torch.zeros_like(reward)
        for name, w in self.weights:
            total = total + w * b[Subscore(name)]
            weight = weight + w * b.has(Subscore(name))
        return reward + total / weight.masked_fill(weight == 0, 1.0)


def multi_objective_grpo(
    *,
    group_size: int = 8,
    weights: tuple[tuple[str, float], ...] = (("chain_true", 1.0),),
    outcome: float = 0.0,
    kl: float = 0.04,
) -> Method:
    """GRPO on a weighted mean of several scores per answer, such as the heads of a reward model.

    One opaque reward hides the trade-off between qualities such as safety and helpfulness, and PPO also needs a critic.
    Here the reward is an explicit weighted mean of named scores, without a critic; equal weights are our reading.

    Args:
        group_size: answers per prompt.
        weights: pairs of a subscore's name and its weight, w_k, at least 0.
        outcome: factor of the verifier's score, which is added to the mean; 0 leaves it out.
        kl: coefficient of the KL penalty to the initial policy.
    """
    return Method(
        group_size=group_size,
        shaping=(Score(scale=outcome), AddWeightedMean(weights)),
        advantage=(Standardised(eps=1e-4),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=group_mean),
    )


REFERENCE = PaperReference(
    paper="Optimizing Safe and Aligned Language Generation: A Multi-Objective GRPO Approach",
    arxiv="2503.21819",
    evidence="paper read",
    parent="grpo",
    formula="""\
R_i = sum_k w_k R_k,i / sum_k w_k
A_i = (R_i - mean(R)) / std(R), GRPO's objective""",
    differences=(
        PaperDifference("weights", "not obtained", "not released", "equal (inferred)"),
        PaperDifference("reward model", "one encoder, one head per aspect", "not released", "any verifier with parts"),
        PaperDifference("outcome", "none", "not released", "0: none; outcome = 1 adds the score"),
        PaperDifference("KL, group size", "not obtained", "not released", "0.04 and 8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[multi_objective_grpo]",
        "tests/golden/test_methods.py::test_whole_path[multi_objective_grpo, two parts]",
        "tests/golden/test_reward.py::test_weighted_mean_table",
    ),
    expected_effect=ExpectedEffect(
        metric="subscores/chain_true",
        direction="up",
        task="calculator",
        parent="grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
        settings=("iterations = 10", "method.objective.penalties = []"),
        is_rewarded=True,
    ),
    our_finding="Its metric is its own score: GRPO's reward is the outcome alone, so the effect says that what is "
    "rewarded rises. gdpo is the comparison with a parent that is rewarded with the same scores.",
)
