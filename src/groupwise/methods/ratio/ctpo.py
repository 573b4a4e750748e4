"""CTPO: Cumulative Token Policy Optimization."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Ratio, Surrogate, UnsplitUnit
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import MAX_LOG_RATIO, Objective, SequenceTruncatedImportance, token_mean
from groupwise.objective.ratios import bounded
from groupwise.objective.surrogates import Clipped

__all__ = ["LogClip", "ctpo", "prefix_ratio"]

MAX_LOG_PREFIX = 10.0
"""The upper bound of the log of a prefix's ratio, which is a product of token ratios."""


@dataclass(frozen=True, slots=True)
class PrefixRatio(Ratio):
    """`sg[product of r up to the token] pi / sg[pi]`: the prefix's ratio, with the gradient of the token's log-prob.

    Its mean weighs each token's context as the current policy does. The log is at most 10, as in the authors' code.
    CTPO, arXiv:2605.07331.
    """

    name: ClassVar[str] = "prefix_ratio"
    unsplit_unit: ClassVar[UnsplitUnit] = "sequence"

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        prefix = b.sequences.prefix(bounded((b.logp - b.logp_old).detach()))
        return (prefix.clamp(-MAX_LOG_RATIO, MAX_LOG_PREFIX) + b.logp - b.logp.detach()).exp()


prefix_ratio = PrefixRatio()


@dataclass(frozen=True, slots=True)
class LogClip(Surrogate):
    """PPO's clip of the log-ratio, in a range that grows with `position ** position_exponent`; for A < 0 also a bound.

    `position` counts the trained tokens of an answer from 1. CTPO, arXiv:2605.07331.
    """

    low: float = 0.025
    high: float = 0.05
    negative_high: float = 0.05
    position_exponent: float = 0.5
    ratio: Ratio = prefix_ratio

    def __post_init__(self) -> None:
        if min(self.low, self.high, self.negative_high) < 0:
            raise ValueError(
                f"{self}: low, high and negative_high are distances from 0 in log space and cannot be negative"
            )

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        r, a, width = self.ratio(b), b.advantage, self._width(b)
        near = r.log().maximum(-self.low * width).minimum(self.high * width).exp()
        gain = torch.minimum(r * a, near * a)
        return torch.where(a < 0, torch.maximum(gain, (self.negative_high * width).exp() * a), gain)

    def clipped(self, b: Batch) -> Clipped:
        gap, a, width = self.ratio(b).log(), b.advantage, self._width(b)
        above = torch.where(a < 0, gap > self.negative_high * width, gap > self.high * width)
        return (a < 0) & (gap < -self.low * width), (a != 0) & above

    def _width(self, b: Batch) -> Float[Tensor, " n"]:
        return b.sequences.prefix(torch.ones_like(b.advantage)) ** self.position_exponent


def ctpo(
    *,
    group_size: int = 8,
    low: float = 0.025,
    high: float = 0.05,
    position_exponent: float = 0.5,
    minibatches: int = 16,
) -> Method:
    """The product of ratios up to each token, in a clip range that grows with the root of its position.

    A token's ratio ignores that its prefix also comes from the old policy, and the ratio of the whole answer has a high
    variance. CTPO takes the product up to each token; the clip range grows with the position, because the spread of the
    product's log also grows.

    Args:
        group_size: answers per prompt, at least 2.
        low: distance of the lower clip bound from 0 in log space at the first token, a_low, at least 0.
        high: distance of the upper clip bound from 0 in log space at the first token, a_high and a_cap, at least 0.
        position_exponent: power of the position in the clip range, p; 0 is a constant range.
        minibatches: optimizer steps per iteration.
    """
    surrogate = LogClip(low, high, negative_high=high, position_exponent=position_exponent)
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=surrogate, weights=(SequenceTruncatedImportance(5.0),), aggregate=token_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Rethinking Importance Sampling in LLM Policy Optimization: A Cumulative Token Perspective",
    arxiv="2605.07331",
    evidence="code read",
    code="horizon-llm/CTPO@acc40211dbeaa8cb37c2347a8b7ad64192b635c4:verl/trainer/ppo/core_algos.py",
    parent="grpo",
    formula="""\
J = 1/(sum_i |o_i|) sum_i sum_t u_it
L_it = sg[ sum_(u <= t) log r_iu ] + log pi - sg[log pi], at most 10
u_it = min[ exp(L_it) A_i, exp(clip(L_it, -a_low t^p, a_high t^p)) A_i ], and for A_i < 0 at least exp(a_cap t^p) A_i
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference("a_low, a_high, a_cap, p", "not obtained", "0.025, 0.05, 0.05, 0.5", "0.025, 0.05, 0.05, 0.5"),
        PaperDifference("p", "1/2", "the class defaults to 0, the script passes 0.5", "0.5"),
        PaperDifference("minibatches", "not obtained", "16", "16"),
        PaperDifference("group size", "not obtained", "8", "8"),
        PaperDifference("engine's gap", "not obtained", "sequence-level TIS, 5", "SequenceTruncatedImportance(5)"),
        PaperDifference("position", "of the token", "counts the trained tokens", "counts the trained tokens"),
        PaperDifference("floor of the log of the product", "not obtained", "none", "-20"),
        PaperDifference("std of a group", "not obtained", "ddof 1, plus 1e-6", "ddof 1, plus 1e-6"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[ctpo]",
        "tests/golden/test_ratio.py::test_worked_numbers[ctpo]",
        "tests/golden/test_ratio.py::test_ctpo_example",
        "tests/golden/test_ratio.py::test_prefix_ratio_corrects_the_prefix",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="grpo",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=("method.minibatches = 8", "method.objective.penalties = []"),
        acted="clip_ratio/region_mean",
        acted_least=0.01,
    ),
    toy_test="tests/golden/test_ratio.py::test_prefix_ratio_corrects_the_prefix",
)
