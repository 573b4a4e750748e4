"""SAPO: Soft Adaptive Policy Optimization."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import Batch, Ratio, Surrogate
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.objective import Objective, group_mean, token_ratio

__all__ = ["SoftGate", "sapo"]


@dataclass(frozen=True, slots=True)
class SoftGate(Surrogate):
    """`4 / tau sigmoid(tau (r - 1)) A`, tau by the sign of A: a smooth clip. SAPO, arXiv:2511.20347.

    At r = 1 the gradient is REINFORCE's for every tau, and the value is `2 A / tau`, not A.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05
    ratio: Ratio = token_ratio

    def __post_init__(self) -> None:
        if not (0 < self.tau_positive < math.inf and 0 < self.tau_negative < math.inf):
            raise ValueError(f"{self}: needs 0 < tau_positive < inf and 0 < tau_negative < inf")

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        a = b.advantage
        tau = torch.full_like(a, self.tau_negative).masked_fill(a > 0, self.tau_positive)
        return 4 / tau * torch.sigmoid(tau * (self.ratio(b) - 1)) * a


def sapo(
    *, group_size: int = 16, tau_positive: float = 1.0, tau_negative: float = 1.05, minibatches: int = 4
) -> Method:
    """A smooth gate on the token ratio instead of a clip; it decays faster for negative advantages.

    Hard clips are brittle, the paper argues: GSPO drops a whole answer because of a few far tokens, and GRPO drops
    tokens at a sharp edge. SAPO fades the gradient smoothly, and faster for A < 0, because a lower probability for one
    token raises all others.

    Args:
        group_size: answers per prompt, G, at least 2.
        tau_positive: temperature of the gate for A > 0, tau_pos, above 0; a higher one fades faster.
        tau_negative: temperature of the gate for A <= 0, tau_neg, above 0.
        minibatches: optimizer steps per iteration.
    """
    return Method(
        group_size=group_size,
        advantage=(Standardised(),),
        objective=Objective(surrogate=SoftGate(tau_positive, tau_negative), aggregate=group_mean),
        minibatches=minibatches,
    )


REFERENCE = PaperReference(
    paper="Soft Adaptive Policy Optimization",
    arxiv="2511.20347",
    evidence="code read",
    code="volcengine/verl@b178a3cd56f58b2d502255daba591e92833930a7:verl/trainer/ppo/core_algos.py",
    parent="gspo",
    formula="""\
J = 1/G sum_i 1/|o_i| sum_t f_it(r_it) A_i
f_it(r) = 4/tau_i sigmoid( tau_i (r - 1) ),  tau_i = tau_pos if A_i > 0 else tau_neg
A_i = (R_i - mean(R)) / std(R)""",
    differences=(
        PaperDifference(
            "temperatures", "1.0 and 1.05", "not released; verl, TRL and ms-swift the same", "1.0 and 1.05"
        ),
        PaperDifference("minibatches", "4 (recalled)", "not released; verl 4 and 8", "4"),
        PaperDifference("group size", "not specified", "not released; verl examples 16", "16 (inferred)"),
        PaperDifference(
            "aggregate", "tokens, sequences, groups", "verl: forced to sequences, groups ignored", "group_mean"
        ),
        PaperDifference("std of a group", "not specified", "verl and TRL: ddof 1", "ddof 1, plus 1e-6"),
        PaperDifference("KL", "none", "not released; none", "none"),
    ),
    proof_tests=(
        "tests/golden/test_methods.py::test_whole_path[sapo]",
        "tests/golden/test_methods.py::test_worked_numbers[sapo]",
        "tests/golden/test_methods.py::test_soft_gate_table",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="hinted_sums",
        parent="gspo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=("method.minibatches = 8", "method.epochs = 4", "method.objective.penalties = []"),
        plan="whole",
    ),
)
