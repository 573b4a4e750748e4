"""AsymGRPO: asymmetric advantages from the odds of a prompt."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch, Outcome
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Clip, Objective, token_mean
from groupwise.rewards import mixed_outcomes

__all__ = ["OddsAdvantage", "asym_grpo"]


@dataclass(frozen=True, slots=True)
class OddsAdvantage(Advantage):
    """`((1 - p) / p)^a` for a correct answer, `-(p / (1 - p))^b` for another, p the pass rate of the group.

    0 where all answers are correct or none is. With both exponents 1/2 it is GRPO's z-score with ddof 0. `max_abs`
    bounds it. AsymGRPO, arXiv:2604.04894; that exponents separate the two classes is our reading.
    """

    group_relative: ClassVar[bool] = True

    correct_exponent: float = 0.75
    wrong_exponent: float = 0.5
    max_abs: float = 10.0

    def __post_init__(self) -> None:
        if self.correct_exponent < 0 or self.wrong_exponent < 0 or self.max_abs <= 0:
            raise ValueError(f"{self}: needs correct_exponent >= 0, wrong_exponent >= 0 and max_abs > 0")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        correct = b.outcome == Outcome.correct
        p = b.groups.spread(b.groups.mean(correct.to(x.dtype)))
        mixed = (p > 0) & (p < 1)
        odds = torch.where(mixed, (1 - p) / p.masked_fill(~mixed, 1.0), 1.0)
        a = torch.where(correct, odds**self.correct_exponent, -(odds**-self.wrong_exponent)).clamp(
            -self.max_abs, self.max_abs
        )
        return torch.where(mixed, a, 0.0)


def asym_grpo(
    *,
    group_size: int = 8,
    right: float = 0.75,
    wrong: float = 0.5,
    low: float = 0.2,
    high: float = 0.28,
    minibatches: int = 1,
) -> Method:
    """Advantages are powers of the group's odds, with one exponent for correct answers and one for the others.

    The paper argues that correct answers preserve useful entropy and wrong ones remove noise, but GRPO gives both the
    same strength. Here two exponents set the two strengths separately; this form is our reading.

    Args:
        group_size: answers per prompt.
        right: exponent for correct answers, k+, at least 0.
        wrong: exponent for other answers, k-, at least 0.
        low: distance of the lower clip bound from 1.
        high: distance of the upper clip bound from 1.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        filter=mixed_outcomes,
        max_refills=10,
        advantage=(OddsAdvantage(right, wrong),),
        objective=Objective(surrogate=Clip(low, high), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Asymmetric Advantage Modulation Calibrates Entropy Dynamics in RLVR",
    arxiv="2604.04894",
    evidence="our reading",
    parent="dapo",
    formula="""\
A_i = ((1 - p) / p)^k+ if correct, - (p / (1 - p))^k- if not; p the pass rate of the group
J = 1/(sum_i |o_i|) sum_i sum_t min[ r_it A_i, clip(r_it, 0.8, 1.28) A_i ]""",
    differences=(
        PaperDifference("two exponents", "two channels, scaled apart", "not found", "above (inferred)"),
        PaperDifference("exponents", "not obtained", "not found", "0.75 and 0.5 (inferred); 1/2 and 1/2 is GRPO"),
        PaperDifference("largest advantage", "not obtained", "not found", "10 (inferred)"),
        PaperDifference(
            "clip range, aggregate", "not obtained", "not found", "0.2 and 0.28, tokens, as DAPO (inferred)"
        ),
        PaperDifference("group size", "not obtained", "not found", "8 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[asym_grpo]",
        "tests/golden/test_reward.py::test_odds_table",
    ),
    expected_effect=ExpectedEffect(
        metric="entropy",
        direction="up",
        task="hinted_sums",
        parent="dapo",
        min_difference=0.02,
        runs_matched_by="tokens",
        settings=("iterations = 10", "method.minibatches = 8", "method.objective.penalties = []"),
        acted="clip_ratio/region_mean",
        acted_least=0.01,
    ),
)
