"""Corrections for a verifier that errs at known rates."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Whitened
from groupwise.data import Advantage, Batch, MethodState, Outcome, Shaping
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, token_mean
from groupwise.rewards import Correctness

__all__ = ["DebiasedReward", "FalseRejectRate", "ForwardCorrection", "noisy_verifier"]


@dataclass(frozen=True, slots=True)
class FalseRejectRate(MethodState):
    """Estimates the share of correct answers that the verifier rejects, with a second verifier. arXiv:2510.00915.

    A verdict's subscore `appealed` is 1 if a second verifier looked at a rejected answer, and `overturned` is 1 if it
    accepted it. The estimate is averaged with the weight `ema_decay`. Estimate and average are our reading.
    """

    start_value: float = 0.1
    ema_decay: float = 0.9
    max_rate: float = 0.5

    def init(self) -> float:
        return self.start_value

    def __call__(self, state: float, batch: Batch, stats: Mapping[str, float]) -> float:
        appealed = sum(_part(batch, "appealed"))
        if not appealed:
            return state
        accepted = int((batch.outcome == Outcome.correct).sum())
        missed = (len(batch) - accepted) * sum(_part(batch, "overturned")) / appealed
        rate = missed / max(missed + accepted, 1e-12)
        return min(max(self.ema_decay * state + (1 - self.ema_decay) * rate, 0.0), self.max_rate)


def _part(batch: Batch, name: str) -> list[float]:
    """The values of a named score of the verdicts; empty if no verdict has it."""
    return batch.subscores[name].tolist() if name in batch.subscores else []


@dataclass(frozen=True, slots=True)
class ForwardCorrection(Advantage):
    """`x - (1 - rejects)`: corrects rewards for a verifier that rejects the share `rejects` of correct answers.

    `rejects` is the share of correct answers that the verifier rejects, from the state `FalseRejectRate`. A group
    baseline after it undoes the correction. arXiv:2510.00915, forward correction.
    """

    state: str = "rejects"

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return x - (1 - b.method_states[self.state])


@dataclass(frozen=True, slots=True)
class DebiasedReward(Shaping):
    """`(reward - false_accept_rate) / (1 - false_accept_rate - false_reject_rate)`: unbiased for known rates.

    `false_accept_rate` is the share of wrong answers that the verifier accepts, `false_reject_rate` the share of
    correct ones that it rejects. A z-score after it undoes the correction. arXiv:2510.00915, backward correction.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> reward = DebiasedReward(false_accept_rate=0.1, false_reject_rate=0.2)
    >>> [round(x, 6) for x in reward(batch.verdict_score, batch).tolist()]
    [1.285714, -0.142857]
    """

    false_accept_rate: float = 0.1
    false_reject_rate: float = 0.1

    def __post_init__(self) -> None:
        if not (
            self.false_accept_rate >= 0
            and self.false_reject_rate >= 0
            and self.false_accept_rate + self.false_reject_rate < 1
        ):
            raise ValueError(f"{self}: needs false_accept_rate >= 0, false_reject_rate >= 0, and a sum of both below 1")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return (reward - self.false_accept_rate) / (1 - self.false_accept_rate - self.false_reject_rate)


def noisy_verifier(
    *,
    group_size: int = 8,
    correction: Literal["forward", "backward"] = "forward",
    false_accept_rate: float = 0.1,
    false_reject_rate: float = 0.1,
    minibatches: int = 1,
) -> Method:
    """Corrects the gradient, on average, for a verifier's false accepts and false rejects. Without a group baseline.

    A verifier that rejects correct answers or accepts wrong ones biases the gradient. The forward form corrects this
    with the rate of false rejects, the backward form with both error rates; the formulas are our reading.

    Args:
        group_size: answers per prompt.
        correction: "forward" (the rate of false rejects alone) or "backward" (both rates).
        false_accept_rate: fraction of wrong answers that the verifier accepts, for the backward form.
        false_reject_rate: fraction of correct answers that the verifier rejects; first estimate of the forward form.
        minibatches: optimizer steps per iteration.
    """
    forward = correction == "forward"
    return Method(
        group_size=group_size,
        shaping=(Correctness(),) if forward else (Correctness(), DebiasedReward(false_accept_rate, false_reject_rate)),
        advantage=(ForwardCorrection(),) if forward else (Whitened(),),
        objective=Objective(aggregate=token_mean),
        states=(("rejects", FalseRejectRate(false_reject_rate)),) if forward else (),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers",
    arxiv="2510.00915",
    evidence="our reading",
    parent="reinforce",
    formula="""\
forward: A_i = R_i - (1 - rejects), no baseline
backward: A_i = whitened (R_i - accepts) / (1 - accepts - rejects)
rejects = P(R = 0 | correct), accepts = P(R = 1 | wrong)""",
    differences=(
        PaperDifference(
            "forward weights", "need the rejection rate alone", "not found", "the only affine ones (inferred)"
        ),
        PaperDifference(
            "place", "in GRPO's pipeline", "not found", "as the advantage: a group baseline cancels both (derived)"
        ),
        PaperDifference(
            "estimate of the rate",
            "appeals to an LLM",
            "not found",
            "FalseRejectRate from subscores of verdicts (inferred)",
        ),
        PaperDifference("rates", "synthetic, not obtained", "not found", "0.1 and 0.1 (inferred)"),
        PaperDifference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[noisy_verifier]",
        "tests/golden/test_methods.py::test_whole_path[noisy_verifier, backward]",
        "tests/golden/test_reward.py::test_debiased_reward_is_exact",
        "tests/golden/test_reward.py::test_forward_correction_is_parallel",
        "tests/golden/test_reward.py::test_group_baselines_cancel_the_corrections",
        "tests/golden/test_reward.py::test_rejection_rate",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="reinforce",
        min_difference=0.05,
        runs_matched_by="iterations",
        settings=(
            "method.minibatches = 1",
            (
                'verifier = {kind = "NoisyVerdicts", verifier = "sum_steps", false_reject_rate = 0.3, '
                "false_accept_rate = 0.1, appealed_rejection_fraction = 0.5}"
            ),
        ),
    ),
    toy_test="tests/golden/test_reward.py::test_debiased_reward_is_exact",
)
