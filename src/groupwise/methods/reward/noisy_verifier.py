"""Corrections for a verifier that errs at known rates."""

from typing import Literal

from groupwise.advantages import ForwardCorrection, RejectionRate, Whitened
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Effect, Reference
from groupwise.objective import Objective, token_mean
from groupwise.rewards import Correctness, Debiased

__all__ = ["noisy_verifier"]


def noisy_verifier(
    *,
    group_size: int = 8,
    correction: Literal["forward", "backward"] = "forward",
    accepts: float = 0.1,
    rejects: float = 0.1,
    minibatches: int = 1,
) -> Method:
    """Corrects the gradient, on average, for a verifier's false accepts and false rejects. Without a group baseline."""
    forward = correction == "forward"
    return Method(
        group_size=group_size,
        shaping=(Correctness(),) if forward else (Correctness(), Debiased(accepts, rejects)),
        advantage=(ForwardCorrection(),) if forward else (Whitened(),),
        objective=Objective(aggregate=token_mean),
        memory=(("rejects", RejectionRate(rejects)),) if forward else (),
        minibatches=minibatches,
    )


REFERENCE = Reference(
    paper="Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers",
    arxiv="2510.00915",
    label="our reading",
    parent="reinforce",
    formula="""\
forward: A_i = R_i - (1 - rejects), no baseline
backward: A_i = whitened (R_i - accepts) / (1 - accepts - rejects)
rejects = P(R = 0 | correct), accepts = P(R = 1 | wrong)""",
    differences=(
        Difference("forward weights", "need the rejection rate alone", "not found", "the only affine ones (inferred)"),
        Difference(
            "place", "in GRPO's pipeline", "not found", "as the advantage: a group baseline cancels both (derived)"
        ),
        Difference(
            "estimate of the rate", "appeals to an LLM", "not found", "RejectionRate from parts of verdicts (inferred)"
        ),
        Difference("rates", "synthetic, not obtained", "not found", "0.1 and 0.1 (inferred)"),
        Difference("group size, minibatches", "not obtained", "not found", "8 and 1 (inferred)"),
    ),
    proofs=(
        "tests/golden/test_methods.py::test_whole_path[noisy_verifier]",
        "tests/golden/test_methods.py::test_whole_path[noisy_verifier, backward]",
        "tests/golden/test_reward.py::test_debiased_reward_is_exact",
        "tests/golden/test_reward.py::test_forward_correction_is_parallel",
        "tests/golden/test_reward.py::test_group_baselines_cancel_the_corrections",
        "tests/golden/test_reward.py::test_rejection_rate",
    ),
    effect=Effect(
        metric="eval/accuracy_greedy",
        direction="up",
        task="hinted_sums",
        parent="reinforce",
        least=0.05,
        matched="steps",
        settings=(
            "method.minibatches = 1",
            'verifier = {kind = "Noisy", verifier = "sum_steps", rejects = 0.3, accepts = 0.1, appeals = 0.5}',
        ),
    ),
    toy="tests/golden/test_reward.py::test_debiased_reward_is_exact",
)
