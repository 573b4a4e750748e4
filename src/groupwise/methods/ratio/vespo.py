"""VESPO: Variational Sequence-Level Soft Policy Optimization."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Surrogate, UnsplitUnit
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, token_mean
from groupwise.objective.ratios import bounded

__all__ = ["GammaShapedWeight", "vespo"]


@dataclass(frozen=True, slots=True)
class GammaShapedWeight(Surrogate):
    """`sg[W^k exp(decay (1 - W))] A log pi`, with W the product of a sequence's ratios. VESPO, arXiv:2602.10693.

    The weight is 1 at W = 1, is largest at W = k / decay, and falls to 0 on both sides, so nothing is clipped. `k` and
    `decay` (the paper's c1 and c2) differ by the sign of A. The value depends on `log pi`, as in `ClippedWeight`.
    """

    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"

    k_positive: float = 2.0
    decay_positive: float = 3.0
    k_negative: float = 3.0
    decay_negative: float = 2.0

    def __post_init__(self) -> None:
        numbers = (self.k_positive, self.decay_positive, self.k_negative, self.decay_negative)
        if not all(0 < x < math.inf for x in numbers):
            raise ValueError(f"{self}: needs k and decay above 0, so that the weight falls to 0 on both sides of 1")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        s, a = b.sequences, b.advantage
        log_w = s.spread(bounded(s.total(bounded((b.logp - b.logp_old).detach()))))
        k = torch.where(a < 0, self.k_negative, self.k_positive)
        decay = torch.where(a < 0, self.decay_negative, self.decay_positive)
        return (k * log_w + decay * (1 - log_w.exp())).exp() * a * b.logp


def vespo(
    *,
    group_size: int = 8,
    k_positive: float = 2.0,
    decay_positive: float = 3.0,
    k_negative: float = 3.0,
    decay_negative: float = 2.0,
    minibatches: int = 8,
) -> Method:
    """A policy gradient whose weight falls smoothly to 0 as the whole answer's ratio leaves 1, on both sides.

    Samples from an older policy or from the engine need importance weights, whose variance is high, and the paper calls
    token clips and length normalisation heuristic. VESPO derives a smooth weight for the whole answer, without length
    normalisation, from an objective that includes the variance.

    Args:
        group_size: answers per prompt, G, at least 2.
        k_positive: power of the answer's ratio for A >= 0, k, above 0.
        decay_positive: rate of the exponential decay for A >= 0, lambda, above 0.
        k_negative: power of the answer's ratio for A < 0, k, above 0.
        decay_negative: rate of the exponential decay for A < 0, lambda, above 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(
            surrogate=GammaShapedWeight(k_positive, decay_positive, k_negative, decay_negative), aggregate=token_mean
        ),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training",
    arxiv="2602.10693",
    evidence="code read",
    code="huggingface/trl@f2cd57710ae345ea6428ae95363267fcf38a3dc8:trl/trainer/grpo_trainer.py",
    parent="gspo",
    formula="""\
J = 1/(sum_i |y_i|) sum_i sg[phi(W_i)] A_i sum_t log pi(y_it)
W_i = pi(y_i | x) / mu(y_i | x),  phi(W) = W^k exp(lambda (1 - W)), k and lambda by the sign of A_i
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("k, lambda for A >= 0", "2, 3 (by TRL's page)", "2, 3", "k_positive 2, decay_positive 3"),
        PaperDifference("k, lambda for A < 0", "3, 2 (by TRL's page)", "3, 2", "k_negative 3, decay_negative 2"),
        PaperDifference(
            "mu",
            "the behaviour policy",
            "the old policy, times the engine's truncated weights where set; its scripts set none",
            'the old policy; old_logprobs = "engine" takes the engine',
        ),
        PaperDifference(
            "exponent's clamp",
            "not obtained",
            "log-ratios of tokens and of W within -20 and 20, W at least 1e-8",
            "log-ratios of tokens and of W within -20 and 20",
        ),
        PaperDifference("aggregate", "not obtained", "token mean; TRL the same", "token_mean"),
        PaperDifference("group size", "not obtained", "8", "8"),
        PaperDifference("minibatches", "several, up to 64", "8, 16, 32 and 64, by script", "8"),
        PaperDifference("std of a group", "not obtained", "ddof 1, plus 1e-6", "ddof 1, plus 1e-6"),
        PaperDifference("KL", "not obtained", "none", "none"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[vespo]",
        "tests/golden/test_methods.py::test_worked_numbers[vespo]",
        "tests/golden/test_ratio.py::test_vespo_weight_is_largest_at_k_by_decay",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="gspo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.minibatches = 8", "method.objective.penalties = []"),
    ),
)
