"""Penalties: per-token terms to minimise, such as a KL, each times its coefficient.

A penalty is an estimator per sampled token. Its mean over the old policy's samples, in a given context, is a sum over
the vocabulary. The effect of the policy on which contexts occur is ignored, as everywhere in the field.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Logp, NeededMeasure, Penalty
from groupwise.objective.ratios import MAX_LOG_RATIO, bounded

__all__ = ["KL", "EntropyBonus", "kl_k1", "kl_k3"]

Form = Literal["k2", "k3", "corrected"]


@dataclass(frozen=True, slots=True)
class KL(Penalty):
    """`coefficient * KL(pi || reference)`, estimated from the sampled token alone.

    With `x = log reference - log pi`:

    | form      | number            | value                  | gradient where pi = pi_old    |
    |-----------|-------------------|------------------------|-------------------------------|
    | k2        | x^2 / 2           | biased, second order   | exact                         |
    | k3        | exp(x) - 1 - x    | exact where pi = pi_old| that of KL(reference || pi)   |
    | corrected | r (exp(x) - 1 - x)| exact                  | exact, also away from pi_old  |

    k3 is GRPO's, arXiv:2402.03300, equation 4. corrected is arXiv:2506.09477, with `r` the token ratio. k1 has an
    expected gradient of 0, so it is a metric and not a form. A coefficient of 0 needs no reference.
    For x above 20, k3 is clamped and has no gradient: it does not restore a token to which the policy gives almost no
    probability and the reference does. The other forms have a gradient at any distance.
    """

    coefficient: float
    kl_estimator: Form = "k3"
    model: str = "reference"

    def __post_init__(self) -> None:
        if self.kl_estimator not in ("k2", "k3", "corrected"):
            raise ValueError(f"KL has no estimator {self.kl_estimator!r}; its forms are k2, k3 and corrected")
        if self.coefficient < 0:
            raise ValueError(
                f"KL({self.coefficient}): needs coefficient >= 0; a negative one pushes the policy away without bound"
            )

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Logp(self.model)}) if self.coefficient else frozenset()

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        if self.coefficient == 0:
            return torch.zeros_like(b.logp)
        match self.kl_estimator:
            case "k2":
                return self.coefficient * kl_k1(b, self.model) ** 2 / 2
            case "k3":
                return self.coefficient * kl_k3(b, self.model)
            case "corrected":
                # r exp(x) = reference / pi_old is a constant: the gradient is -r x, however far x goes.
                reference = b[Logp(self.model)]
                constant = bounded(reference - b.logp_old).exp().detach()
                return self.coefficient * (constant - _ratio(b) * (1 + reference - b.logp))


@dataclass(frozen=True, slots=True)
class EntropyBonus(Penalty):
    """An entropy bonus: `-coefficient * entropy(pi)`, estimated from the sampled token alone.

    At pi = pi_old the estimator is `-log pi`, and its gradient `-log pi` times the score. The means of value and
    gradient are exact, also away from pi_old (`E[r] = 1`). A token with probability near 1 has almost no gradient,
    unlike with `-r log pi`.
    """

    coefficient: float

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        if self.coefficient == 0:
            return torch.zeros_like(b.logp)
        return -self.coefficient * (_ratio(b) * (1 - b.logp) - 1)


def _ratio(b: Batch) -> Float[Tensor, " n"]:
    """`pi / pi_old`, clamped as `token_ratio`, but with its gradient also beyond the clamp."""
    gap = b.logp - b.logp_old
    return (gap + (bounded(gap) - gap).detach()).exp()


def kl_k1(b: Batch, model: str = "reference") -> Float[Tensor, " n"]:
    """`log pi - log reference`, the estimator k1. Over samples of pi its mean is the KL. One value may be negative."""
    return b.logp - b[Logp(model)]


def kl_k3(b: Batch, model: str = "reference") -> Float[Tensor, " n"]:
    """`exp(x) - 1 - x` with `x = log reference - log pi`. It is never negative. Over samples of pi its mean is the KL.

    Only large x is clamped, so a token that is impossible under the reference keeps its gradient.
    """
    x = (b[Logp(model)] - b.logp).clamp(max=MAX_LOG_RATIO)
    return torch.expm1(x) - x
