"""GRPO with process rewards: a reward for each reasoning step of an answer."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.advantages.credit import discounted
from groupwise.data import Batch, Credit, NeededMeasure, TokenMark
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import KL, Clip, Objective, group_mean

__all__ = ["ReasoningStepReturns", "grpo_process"]


@dataclass(frozen=True, slots=True)
class ReasoningStepReturns(Credit):
    """For each token, the sum of the z-scored rewards of its and later reasoning steps. GRPO, arXiv:2402.03300, 4.1.3.

    Step rewards are a mark at each step's last token. All steps of a group have one mean and std. The sample's number x
    is not used: add it with `outcome_weight`.
    """

    step_reward_mark: str = "steps"
    outcome_weight: float = 0.0
    ddof: int = 1
    eps: float = 1e-6

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({TokenMark(self.step_reward_mark)})

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        rewards = b[TokenMark(self.step_reward_mark)].to(x.dtype)
        marked = ~rewards.isnan()
        z = torch.zeros_like(rewards)
        z[marked] = b.token_groups.keep(marked).zscore(rewards[marked], ddof=self.ddof, eps=self.eps)
        return discounted(z, b.sequences.index, 1.0) + self.outcome_weight * b.sequences.spread(x)


def grpo_process(
    *, group_size: int = 64, step_reward_mark: str = "step", outcome: float = 0.0, clip: float = 0.2, kl: float = 0.04
) -> Method:
    """GRPO, where a token's advantage is the sum of the z-scored rewards of its step and of all later steps.

    With a reward for the outcome alone, all tokens of an answer have the same advantage, although its steps differ in
    quality. A reward for each step gives tokens of different steps different advantages; step rewards from the verdict,
    instead of a trained reward model, are our reading.

    Args:
        group_size: answers per prompt, G, at least 2.
        step_reward_mark: name of the verdict's steps with the rewards r_ik, each at a step's last token.
        outcome: weight of GRPO's advantage from the outcome, added to each token; 0 leaves it out.
        clip: distance of both clip bounds of the ratio from 1, eps.
        kl: weight of the KL penalty to the initial policy, beta, at least 0.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        credit=ReasoningStepReturns(step_reward_mark, outcome),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=Clip(clip, clip), penalties=(KL(kl, kl_estimator="k3"),), aggregate=group_mean),
    )


REFERENCE = PaperReference(
    paper="DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    arxiv="2402.03300",
    evidence="our reading",
    parent="grpo",
    formula="""\
A_it = sum over the steps k of answer i that end at or after t of (r_ik - mean(r)) / std(r)
mean and std over all steps of all answers of the group; the rest as in grpo""",
    differences=(
        PaperDifference("step rewards", "a trained reward model", "not released", "steps of the verdict, by name"),
        PaperDifference("std of all steps", "not specified", "not released", "ddof 1, plus 1e-6; equal steps give 0"),
        PaperDifference("outcome", "not used", "not released", "weight 0; outcome adds grpo's advantage"),
        PaperDifference(
            "tokens after the last step, answers without a step", "not specified", "not released", "advantage 0"
        ),
        PaperDifference("group size, clip range, KL", "as in grpo", "not released", "64, 0.2, 0.04"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[grpo_process]",
        "tests/golden/test_methods.py::test_whole_path[grpo_process, with outcomes]",
        "tests/golden/test_reward.py::test_step_returns",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="deduction",
        parent="grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
    ),
)
