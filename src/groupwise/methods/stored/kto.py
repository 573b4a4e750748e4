"""KTO: Kahneman-Tversky Optimization."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Logp, NeededMeasure, Surrogate, UnsplitUnit
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import STORED_SUMS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, log_ratio_to, sequence_mean
from groupwise.rollout import ShuffledRows, Stored

__all__ = ["ProspectValue", "kto"]

OTHER = "other_prompt"
"""The view of an answer under the prompt of another row, which `Stored` writes."""


@dataclass(frozen=True, slots=True)
class ProspectValue(Surrogate):
    """`lambda (sigmoid(beta (r - z)) - 1)` of a wanted answer, and of z - r for an unwanted one. r is the log-ratio.

    z, the reference point, is the mean log-ratio of the step's answers under prompts of other rows, before the update,
    and at least 0. A reward above 1/2 means wanted. KTO, arXiv:2402.01306, equations 7 and 8.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "step"

    beta: float = 0.1
    desirable: float = 1.0
    undesirable: float = 1.0
    reference_model: str = "reference"

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp(self.reference_model), Logp("policy", OTHER), Logp(self.reference_model, OTHER)})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        r, z, wanted = log_ratio_to(b, self.reference_model, "sum"), self.reference_point(b), b.reward > 0.5
        factor = torch.where(wanted, self.desirable, self.undesirable).to(r.dtype)
        value = torch.sigmoid(self.beta * torch.where(wanted, r - z, z - r)) - 1
        return b.sequences.spread(factor * value)

    def reference_point(self, b: Batch) -> Float[Tensor, ""]:
        """The estimate of the KL divergence from the reference, without gradient; 0 without a second prompt."""
        gap = b.sequences.total(b[Logp("policy", OTHER)] - b[Logp(self.reference_model, OTHER)])
        known = ~gap.isnan() & (b.sequences.lengths > 0)
        return (gap.masked_fill(~known, 0.0).sum() / known.sum().clamp(min=1)).clamp(min=0).to(b.logp.dtype)

    def implicit_reward(self, b: Batch) -> Float[Tensor, " s"]:
        return self.beta * log_ratio_to(b, self.reference_model, "sum")


def kto(*, beta: float = 0.1, desirable: float = 1.0, undesirable: float = 1.0, minibatches: int = 1) -> Method:
    """A value function of gains and losses on single answers, each wanted or not: no pairs are needed.

    People weigh gains and losses from a reference point, with diminishing sensitivity, and feedback is often a thumb up
    or down on one answer. The value saturates, so that hopeless and noisy answers have little gradient.

    Args:
        beta: factor of the log-ratio, beta.
        desirable: weight of wanted answers, lambda_D.
        undesirable: weight of unwanted answers, lambda_U.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=1,
        curriculum=ShuffledRows(),
        strategy=Stored(adds_other_prompt_view=True, splits_pairs=True),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=ProspectValue(beta, desirable, undesirable), aggregate=sequence_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="KTO: Model Alignment as Prospect Theoretic Optimization",
    arxiv="2402.01306",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/kto_trainer.py",
    parent="dpo",
    formula="""\
J = mean over answers of lambda_D (sigmoid(beta (r - z)) - 1) if wanted, else lambda_U (sigmoid(beta (z - r)) - 1)
r = sum_t log(pi(y_t | x, y_<t) / pi_ref(y_t | x, y_<t))
z = max(0, mean over answers of sum_t log(pi(y_t | x', y_<t) / pi_ref(y_t | x', y_<t))), x' another row's prompt""",
    differences=(
        PaperDifference("beta", "0.1", "TRL: 0.1", "0.1"),
        PaperDifference("lambda_D, lambda_U", "1 and 1, or 4/3 for imbalance", "TRL: 1.0 and 1.0", "1.0 and 1.0"),
        PaperDifference("z", "over a microbatch", "TRL: over the microbatches of all ranks", "over the optimizer step"),
        PaperDifference(
            "policy of z", "the current one", "TRL: the current one", "that before the iteration's first step"
        ),
        PaperDifference("other prompt", "the next of the microbatch", "TRL: the next of the batch", "the next draw's"),
        PaperDifference("memory", "not specified", "TRL: any number of microbatches", "a step is one microbatch"),
        PaperDifference("minibatches", "not specified", "TRL: 1 step per batch", "1"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[kto]",
        "tests/golden/test_stored.py::test_the_reference_point_is_the_mean_under_other_prompts",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="dpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(*STORED_SUMS, "iterations = 6"),
        own_settings=("prompts = 16",),
    ),
)
