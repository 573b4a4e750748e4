"""SEED-GRPO: semantic entropy scales the update of each prompt."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import centred
from groupwise.data import Advantage, Batch, Segments
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, budget_mean

__all__ = ["SemanticEntropyScaling", "seed_grpo"]


@dataclass(frozen=True, slots=True)
class SemanticEntropyScaling(Advantage):
    """`x f(alpha u)`, f falling from 1: scales down the advantage x in groups with many different answers (entropy u).

    Samples with equal `Verdict.answer` agree; a sample without one agrees with none. u is the entropy over `log G`.
    `sampled` is the mean of `-log share` over the distinct answers, `shannon` over the samples. f(y) is `exp(-y)`,
    `1 - y` or `(1 - y)^focal_gamma`. The paper's choice of f, alpha and shares was not obtained: all are our reading.
    """

    unstored_input: ClassVar[str] = "the answers that the verifier read"

    alpha: float = 1.0
    scaling_form: Literal["exp", "linear", "focal"] = "exp"
    focal_gamma: float = 2.0
    entropy_estimator: Literal["sampled", "shannon"] = "sampled"

    def __post_init__(self) -> None:
        if self.alpha < 0 or (self.scaling_form != "exp" and self.alpha > 1):
            raise ValueError(f"{self}: needs alpha >= 0, and alpha <= 1 unless scaling_form = exp")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, same = b.groups, _clusters(b)
        log_share = (same.spread(same.size(x)) / g.spread(g.size(x))).log()
        if self.entropy_estimator == "sampled":
            once = same.spread(1 / same.size(x).clamp(min=1))  # the samples of an answer count as one
            entropy = -g.total(once * log_share) / g.total(once).clamp(min=1)
        else:
            entropy = -g.mean(log_share)
        size = g.size(x)
        u = torch.where(size > 1, entropy / size.clamp(min=2).log(), 0.0)
        return x * g.spread(self._factor(self.alpha * u))

    def _factor(self, x: Float[Tensor, " g"]) -> Float[Tensor, " g"]:
        match self.scaling_form:
            case "exp":
                return (-x).exp()
            case "linear":
                return 1 - x
            case "focal":
                return (1 - x) ** self.focal_gamma


def _clusters(b: Batch) -> Segments:
    """The clusters of samples with equal answers, within each group."""
    numbers: dict[Any, int] = {}
    index: list[int] = []
    for i, (sample, group) in enumerate(zip(b.samples, b.groups.index.tolist())):
        answer = sample.verdict.answer if sample.verdict else None
        index.append(numbers.setdefault((group, i if answer is None else answer), len(numbers)))
    return Segments(torch.tensor(index, dtype=torch.long, device=b.groups.index.device), len(numbers))


def seed_grpo(
    *,
    group_size: int = 8,
    alpha: float = 1.0,
    scaling_form: Literal["exp", "linear", "focal"] = "exp",
    minibatches: int = 1,
) -> Method:
    """Dr. GRPO's advantage times a factor that falls with the entropy of the group's final answers.

    GRPO updates every prompt with the same strength, whether its answers agree or differ. Here the advantages of a
    prompt shrink as its answers differ more; the form of this factor is our reading.

    Args:
        group_size: answers per prompt, G.
        alpha: strength of the factor, alpha, at least 0; at most 1 unless form is "exp".
        scaling_form: the factor f(x): "exp" (exp(-x)), "linear" (1 - x) or "focal" ((1 - x)^2).
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(centred, SemanticEntropyScaling(alpha, scaling_form)),
        objective=Objective(aggregate=budget_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization",
    arxiv="2505.12346",
    evidence="our reading",
    parent="dr_grpo",
    formula="""\
A_i = (R_i - mean(R)) f(alpha SE / log G),  f(x) = exp(-x), 1 - x or (1 - x)^2
SE = - 1/K sum_k log(share of answer k), over the K distinct answers of the group""",
    differences=(
        PaperDifference("f and alpha", "three forms compared", "not released", "exp with alpha 1 (inferred)"),
        PaperDifference(
            "share of an answer", "sum of sequence probabilities", "not released", "its frequency (inferred)"
        ),
        PaperDifference(
            "equal answers", "the same meaning", "not released", "equal text that the verifier read (inferred)"
        ),
        PaperDifference("no answer found", "not specified", "not released", "a distinct answer (inferred)"),
        PaperDifference("entropy", "over the distinct answers", "not released", 'sampled; estimate = "shannon"'),
        PaperDifference("base", "mean without std", "not released", "Dr. GRPO"),
        PaperDifference(
            "length divisor", "not obtained", "not released", "the budget max_tokens, one number (Dr. GRPO)"
        ),
        PaperDifference("group size", "not obtained", "not released", "8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[seed_grpo]",
        "tests/golden/test_reward.py::test_semantic_entropy",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="mixed_sums",
        parent="dr_grpo",
        min_difference=0.02,
        runs_matched_by="iterations",
    ),
)
