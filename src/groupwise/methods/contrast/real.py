"""REAL: rewards as labels of a classification."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from groupwise.data import Batch, Outcome, Surrogate, UnsplitUnit, aggregate
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, group_token_mean
from groupwise.objective.ratios import bounded

__all__ = ["BinaryClassification", "LabelContrast", "mixed_mean", "real"]


@dataclass(frozen=True, slots=True)
class LabelContrast(Surrogate):
    """A classification loss for groups with correct and wrong answers; the outcomes are labels. REAL, arXiv:2602.05630.

    `-log(1 + sum over wrong exp(s / tau)) - log(1 + sum over correct exp(-s / tau))`, s the mean log-ratio of an
    answer. An answer's weight is at most `1 / tau`. `product` is `-log(1 + the product of both sums)`. 0 in a group
    without both outcomes.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    tau: float = 0.5
    loss_form: Literal["anchored", "product"] = "anchored"

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ValueError(f"{self}: needs tau > 0")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        g, s, correct = b.groups, bounded(b.sequences.mean(b.logp - b.logp_old)) / self.tau, labels(b)
        wrong_sum = g.total(torch.where(correct == -1, s.exp(), 0.0))
        correct_sum = g.total(torch.where(correct == 1, (-s).exp(), 0.0))
        if self.loss_form == "product":
            loss = (wrong_sum * correct_sum).log1p()
        else:
            loss = wrong_sum.log1p() + correct_sum.log1p()
        return -b.token_groups.spread(loss)


@dataclass(frozen=True, slots=True)
class BinaryClassification(Surrogate):
    """Binary classification by an answer's mean log-ratio s: `log sigmoid(s / tau)`, with -s if it is wrong. REAL.

    0 in a group without both outcomes. For the aggregate `mixed_mean`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "group"

    tau: float = 0.5

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s = b.sequences.mean(b.logp - b.logp_old) / self.tau
        label = labels(b)
        return b.sequences.spread(torch.where(label != 0, logsigmoid(label * s), 0.0))


def labels(b: Batch) -> Int[Tensor, " s"]:
    """1 for a correct and -1 for a wrong answer; 0 without trained tokens, or if the group does not have both."""
    live, correct = b.sequences.lengths > 0, b.outcome == Outcome.correct
    both = (b.groups.total((live & correct).double()) > 0) & (b.groups.total((live & ~correct).double()) > 0)
    return torch.where(b.groups.spread(both) & live, torch.where(correct, 1, -1), 0)


@aggregate
def mixed_mean(step: Batch) -> Float[Tensor, " n"]:
    """The mean over answers, in groups with correct and wrong answers. For `BinaryClassification`."""
    s, mixed = step.sequences, (labels(step) != 0).to(step.advantage.dtype)
    return s.spread(mixed / mixed.sum().clamp(min=1) / s.size(step.advantage).clamp(min=1))


def real(
    *,
    group_size: int = 8,
    tau: float = 0.5,
    loss_form: Literal["anchored", "product", "binary"] = "anchored",
    minibatches: int = 4,
) -> Method:
    """A classification loss of each group: outcomes are labels, mean log-ratios are logits. No advantage, no clip.

    In GRPO a correct answer that became less likely weighs less, and the weight of a wrong one that became more likely
    is unbounded. Here rewards are labels of a classification, and an answer's weight is at most 1/tau.

    Args:
        group_size: answers per prompt.
        tau: temperature of the logits, tau, above 0.
        loss_form: "anchored" (one term per label), "product" (one term for both) or "binary" (one term per answer).
        minibatches: optimizer steps per iteration.
    """
    if loss_form == "binary":
        objective = Objective(surrogate=BinaryClassification(tau), aggregate=mixed_mean)
    else:
        objective = Objective(surrogate=LabelContrast(tau, loss_form), aggregate=group_token_mean)
    return Method(group_size=group_size, objective=objective, minibatches=minibatches)


REFERENCE = PaperReference(
    paper="Rewards as Labels: Revisiting RLVR from a Classification Perspective",
    arxiv="2602.05630",
    evidence="code read",
    code="Red-RL/REAL@1c30726a1c7606e717091b4b8cf1fc156a06039f:verl/verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
J = - mean over groups of [ log(1 + sum_(k wrong) exp(s_k / tau)) + log(1 + sum_(k correct) exp(-s_k / tau)) ]
s_k = 1/|o_k| sum_t log(pi / pi_old); groups without both outcomes have no term and count in the mean
binary: mean over answers of such groups of log sigmoid(+- s_k / tau)""",
    differences=(
        PaperDifference("tau", "0.5", "0.5", "0.5"),
        PaperDifference(
            "groups without both outcomes", "no term", "no term, in the divisor", "no term, in the divisor"
        ),
        PaperDifference(
            "a group in several microbatches", "not specified", "its contrast is cut", "never: a group is one unit"
        ),
        PaperDifference("answer without a token", "not specified", "divided by 0", "in neither set"),
        PaperDifference("group size, minibatches", "8; 4", "8; 4", "8; 4"),
        PaperDifference("ablations", "binary; product", "bce; circle loss", "form"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[real]",
        "tests/golden/test_methods.py::test_whole_path[real, product]",
        "tests/golden/test_methods.py::test_whole_path[real, binary]",
        "tests/golden/test_contrast.py::test_worked_numbers[real]",
        "tests/golden/test_contrast.py::test_worked_numbers[real, product]",
        "tests/golden/test_contrast.py::test_worked_numbers[real, binary]",
        "tests/golden/test_contrast.py::test_label_weights_are_bounded",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.minibatches = 4", "method.objective.penalties = []"),
    ),
    toy_test="tests/golden/test_contrast.py::test_label_weights_are_bounded",
)
