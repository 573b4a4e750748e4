"""GRPO-lambda: a length penalty for correct answers, only in the groups with the best pass rates."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Outcome, Shaping
from groupwise.learner import InitialPolicy
from groupwise.methods.effect_settings import LARGE_GROUPS
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Objective, group_mean
from groupwise.rewards import Correctness

__all__ = ["BrevityWhenSolved", "grpo_lambda"]


@dataclass(frozen=True, slots=True)
class BrevityWhenSolved(Shaping):
    """In groups with the best pass rates, long correct answers lose more reward: `reward (1 - alpha sigmoid(z))`.

    z is the length relative to the group's correct answers, in standard deviations. `top_group_fraction` is the
    fraction of groups. Ties go to the group that was drawn first. GRPO-lambda, arXiv:2505.18086; the sigmoid is our
    reading.
    """

    top_group_fraction: float = 0.2
    alpha: float = 0.2
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not (0 <= self.top_group_fraction <= 1 and 0 <= self.alpha < 1):
            raise ValueError(f"{self}: needs 0 <= top_group_fraction <= 1 and 0 <= alpha < 1, to keep rewards above 0")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        correct = b.outcome == Outcome.correct
        length = b.length.to(reward.dtype)
        z = torch.zeros_like(length)
        z[correct] = b.groups.keep(correct).zscore(length[correct], ddof=1, eps=self.eps)
        shorter = reward * (1 - self.alpha * z.sigmoid())
        return torch.where(b.groups.spread(self._best(b, correct)) & correct, shorter, reward)

    def _best(self, b: Batch, correct: Bool[Tensor, " s"]) -> Bool[Tensor, " g"]:
        """For each group, whether its pass rate is among the best."""
        rate = b.groups.mean(correct.double())
        order = rate.argsort(descending=True, stable=True)
        best = torch.zeros_like(rate, dtype=torch.bool)
        best[order[: math.ceil(self.top_group_fraction * b.groups.count)]] = True
        return best


def grpo_lambda(*, group_size: int = 16, share: float = 0.2, alpha: float = 0.2, kl: float = 0.04) -> Method:
    """GRPO with less reward for long correct answers, in the groups with the best pass rates only.

    A length penalty on prompts that the policy cannot solve yet can make accuracy collapse. Here only the best-solved
    groups of an iteration get the penalty; its form, a sigmoid of the length, is our reading.

    Args:
        group_size: answers per prompt.
        share: fraction of the groups that get the penalty, lambda, from 0 to 1.
        alpha: largest fraction of its reward that a long answer loses, alpha, from 0 to below 1.
        kl: coefficient of the KL penalty to the initial policy.
    """
    return Method(
        group_size=group_size,
        shaping=(Correctness(), BrevityWhenSolved(share, alpha)),
        advantage=(Standardised(),),
        models=(("reference", InitialPolicy()),),
        objective=Objective(penalties=(KL(kl),), aggregate=group_mean),
    )


REFERENCE = PaperReference(
    paper="Stable Reinforcement Learning for Efficient Reasoning",
    arxiv="2505.18086",
    evidence="our reading",
    parent="grpo",
    formula="""\
R_i = y_i (1 - alpha sigmoid((|o_i| - m) / s)) in the share lambda of groups with the best pass rates, else y_i
m, s over the lengths of the group's correct answers
A_i = (R_i - mean(R)) / std(R), GRPO's objective""",
    differences=(
        PaperDifference("length penalty", "not obtained", "not found", "sigmoid (inferred)"),
        PaperDifference("share lambda, alpha", "not obtained", "not found", "0.2 and 0.2 (inferred)"),
        PaperDifference("ties of the pass rate", "not specified", "not found", "the group drawn first (inferred)"),
        PaperDifference("KL", "as the baseline", "not found", "0.04, as GRPO"),
        PaperDifference("group size", "not obtained", "not found", "16 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[grpo_lambda]",
        "tests/golden/test_reward.py::test_brevity_when_solved",
    ),
    expected_effect=ExpectedEffect(
        metric="completions/mean_length_correct",
        direction="down",
        task="wordy_sums",
        parent="grpo",
        min_difference=1.0,
        runs_matched_by="iterations",
        settings=LARGE_GROUPS,
        kept="eval/accuracy",
    ),
)
