"""Masks: choose the tokens that stay in the loss. The others are removed from all ratios and divisors, too."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Finish, Logp, Mask, Measure, mask
from groupwise.objective.weights import log_rho

__all__ = ["Reject", "complete"]


@mask
def complete(b: Batch) -> Bool[Tensor, " n"]:
    """Keeps the tokens of answers that end at an end token or stop string. Overlong filtering, DAPO, arXiv:2503.14476.

    Section 3.4 of DAPO. A truncated answer leaves the numerator and the divisor of the loss, and the statistics over
    tokens, such as whitening. Its reward stays in its group's statistics.
    """
    return b.sequences.spread(b.finish == Finish.stop)


@dataclass(frozen=True, slots=True)
class Reject(Mask):
    """Keeps tokens with a small engine-learner gap, by a statistic of `log rho = log (learner / engine probability)`.

    k1 is `log rho`, with absolute bounds on rho itself; k2 is `log(rho)^2 / 2` and k3 `rho - 1 - log rho`, with `cap`
    alone. `k1` over the `mean` is the geometric filter, over the `sum` the product of the answer. Rejected tokens leave
    all divisors, unlike those of weight 0. "When Speed Kills Stability", 2025, and verl's rejection sampling.
    """

    needs: ClassVar[frozenset[Measure]] = frozenset({Logp("policy")})

    statistic: Literal["k1", "k2", "k3"] = "k1"
    over: Literal["token", "sum", "mean", "largest"] = "mean"
    floor: float = 0.999
    cap: float = 1.001

    def __post_init__(self) -> None:
        if self.statistic == "k1" and not 0 < self.floor <= 1 <= self.cap:
            raise ValueError(
                f"{self}: k1 needs 0 < floor <= 1 <= cap, to keep tokens with equal log-probs in engine and learner"
            )
        if self.cap < 0:
            raise ValueError(f"{self}: needs cap >= 0, to keep tokens with equal log-probs in engine and learner")

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        gap, s = log_rho(b), b.sequences
        x = {"k1": gap, "k2": gap**2 / 2, "k3": torch.expm1(gap) - gap}[self.statistic]
        if self.over != "token":
            x = s.spread({"sum": s.total, "mean": s.mean, "largest": s.largest}[self.over](x))
        if self.statistic == "k1":
            return (x >= math.log(self.floor)) & (x <= math.log(self.cap))
        return x <= self.cap
