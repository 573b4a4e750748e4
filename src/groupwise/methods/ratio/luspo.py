"""LUSPO: Length-Unbiased Sequence Policy Optimization."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Aggregate, Batch, EqualWeightUnit
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, group_mean, sequence_ratio

__all__ = ["LengthScaledAggregate", "luspo"]


@dataclass(frozen=True, slots=True)
class LengthScaledAggregate(Aggregate):
    """The share (token weight) by another aggregate, times the number of tokens of the sequence.

    With a ratio per sequence, it makes a sequence count as often as it has tokens, which the mean over its tokens in
    the ratio cancels in the gradient: LUSPO, arXiv:2602.05261.
    """

    base_aggregate: Aggregate = group_mean

    @property
    def equal_weight_unit(self) -> EqualWeightUnit:
        return getattr(self.base_aggregate, "equal_weight_unit", "tokens")

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s, share = step.sequences, self.base_aggregate(step)
        return share * s.spread(s.size(share))


def luspo(*, group_size: int = 16, low: float = 2e-3, high: float = 2.5e-3, minibatches: int = 4) -> Method:
    """GSPO with the loss of each sequence times its length, so long answers are not pushed less, and a wider clip.

    GSPO's ratio divides the gradient of each token by the answer's length, which, the paper argues, makes answers
    shorter during training. LUSPO multiplies an answer's loss by its length, so a token weighs the same in answers of
    every length.

    Args:
        group_size: answers per prompt, G, at least 2.
        low: distance of the lower clip bound from 1, eps_low.
        high: distance of the upper clip bound from 1, eps_high.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(
            surrogate=Clip(low, high, ratio=sequence_ratio), aggregate=LengthScaledAggregate(group_mean)
        ),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in RLVR",
    arxiv="2602.05261",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/grpo_trainer.py",
    parent="gspo",
    formula="""\
J = 1/G sum_i |y_i| min[ s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i ]
s_i = (pi(y_i | x) / pi_old(y_i | x))^(1/|y_i|)
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("clip range", "2e-3 and 2.5e-3 (by TRL's page)", "not obtained", "2e-3 and 2.5e-3"),
        PaperDifference(
            "aggregate",
            "not obtained",
            "not obtained; TRL: sum over tokens, mean over the microbatch's samples",
            "group_mean times the length, over the whole step",
        ),
        PaperDifference("group size", "not obtained", "not obtained; TRL's page: not set", "16, as gspo (inferred)"),
        PaperDifference("minibatches", "not obtained", "not obtained; TRL's page: not set", "4, as gspo (inferred)"),
        PaperDifference("std of a group", "not obtained", "TRL: ddof 1, plus 1e-4", "ddof 1, plus 1e-6"),
        PaperDifference("KL", "not obtained", "TRL: 0 by default", "none"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[luspo]",
        "tests/golden/test_methods.py::test_worked_numbers[luspo]",
        "tests/golden/test_ratio.py::test_luspo_pushes_each_token_equally_whatever_the_length",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length",
        direction="up",
        task="wordy_sums",
        parent="gspo",
        min_difference=1,
        runs_matched_by="iterations",
        settings=(*LARGE_GROUPS, "method.objective.surrogate.low = 2e-3", "method.objective.surrogate.high = 2.5e-3"),
    ),
    our_finding="On wordy_sums wrong answers became 3.2 tokens shorter than with GSPO, and correct ones 1.1: a long "
    "wrong answer is pushed down harder, too.",
)
