"""ReFIne: rewards structure and calibrated confidence, besides correctness."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, NeededMeasure, Outcome, Shaping, Subscore
from groupwise.methods.method import Method
from groupwise.methods.reference import PaperDifference, PaperReference
from groupwise.objective import Objective, token_mean
from groupwise.rewards import AddSubscore, Correctness

__all__ = ["AddBrierScore", "refine"]


@dataclass(frozen=True, slots=True)
class AddBrierScore(Shaping):
    """Adds a Brier score, `weight (1 - (p - correct)^2)`, for the confidence p that the answer states. ReFIne.

    An answer without a confidence loses: it counts as p = 1/2, less 1.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], subscores={"confidence": [0.9, 0.9]})])
    >>> [round(x, 4) for x in AddBrierScore("confidence")(batch.verdict_score, batch).tolist()]
    [1.2475, 0.0475]
    """

    confidence_subscore: str
    weight: float = 0.25

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.confidence_subscore)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        stated = b.has(Subscore(self.confidence_subscore))
        p = torch.where(stated, b[Subscore(self.confidence_subscore)].clamp(0, 1), 0.5)
        correct = (b.outcome == Outcome.correct).double()
        return reward + self.weight * (1 - (p - correct) ** 2 - (~stated).double())


def refine(
    *, group_size: int = 4, subscores: tuple[str, ...] = (), confidence: str = "confidence", weight: float = 0.25
) -> Method:
    """GRPO on a weighted sum of correctness, `subscores` and the Brier score of the stated confidence. No KL.

    Training for accuracy alone leaves reasoning that is hard to read, and stated confidences that are not usable. Here
    calibrated confidence and subscores, such as for structure and references, are rewarded with equal weight.

    Args:
        group_size: answers per prompt.
        subscores: names of the subscores for structure and references; empty: none.
        confidence: name of the subscore with the stated confidence, p, from 0 to 1.
        weight: weight of each summand of the reward, 1/4 in the formula.
    """
    shaping = (
        Correctness(correct_reward=weight),
        *(AddSubscore(part, weight) for part in subscores),
        AddBrierScore(confidence, weight),
    )
    return Method(
        group_size=group_size,
        shaping=shaping,
        advantage=(Standardised(eps=1e-4),),
        objective=Objective(aggregate=token_mean),
    )


REFERENCE = PaperReference(
    paper=(
        "ReFIne: A Framework for Trustworthy Large Reasoning Models with Reliability, Faithfulness, and "
        "Interpretability"
    ),
    arxiv="2510.09062",
    evidence="code read",
    code=(
        "Trustworthy-ML-Lab/Training_Trustworthy_LRM_with_Refine@7e9de86d6fbc32ed74181821176515189185a79f:"
        "train/grpo_ReFIne.py"
    ),
    parent="grpo",
    formula="""\
R = (correct + structure + references + confidence) / 4
confidence = 1 - (p - correct)^2, p the stated confidence; without one 1 - (1/2 - correct)^2 - 1
A_i = (R_i - mean(R)) / std(R), PPO's clip, no KL""",
    differences=(
        PaperDifference(
            "structure and references",
            "tags in order, and references to them",
            "by regular expressions",
            "subscores of the verdict",
        ),
        PaperDifference(
            "supervised phase before", "tagged traces, debiased confidence", "the same", "[[phase]] tables of a recipe"
        ),
        PaperDifference("aggregate, clip range", "not specified", "those of the TRL version", "token_mean, 0.2"),
        PaperDifference("group size", "4", "4", "4"),
        PaperDifference("weight of each part", "1/4", "0.25", "0.25"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[refine]",
        "tests/golden/test_contrast.py::test_refine_table",
    ),
    unmeasured_reason="No packaged task has answers that state a confidence.",
)
