"""Penalties on denoising steps of a flow policy."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Penalty
from groupwise.models import StepConstantMeasure, StepKL

__all__ = ["StepKLPenalty"]

_LENGTH = StepConstantMeasure("dt")


@dataclass(frozen=True, slots=True)
class StepKLPenalty(Penalty):
    """`coefficient * KL(pi || reference)` of each Gaussian step, exact: `mean (mu - mu_ref)^2 / (2 S^2)`.

    With `multiply_by_dt` it is multiplied by the length of the step, as in the code of Flow-GRPO; without, it is the
    paper's, arXiv:2505.05470. A coefficient of 0 needs no reference.
    """

    coefficient: float = 0.04
    multiply_by_dt: bool = True
    model: str = "reference"

    def __post_init__(self) -> None:
        check_coefficient(self.coefficient)

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        if not self.coefficient:
            return frozenset()
        return frozenset({StepKL(self.model), *([_LENGTH] if self.multiply_by_dt else [])})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        if not self.coefficient:
            return torch.zeros_like(b.logp)
        kl = self.coefficient * b[StepKL(self.model)]
        return kl * b[_LENGTH] if self.multiply_by_dt else kl

    def notes(self, b: Batch) -> dict[str, float]:
        """A metric: the mean KL of a step, per number of its state."""
        return {"kl": float(b[StepKL(self.model)].detach().mean())} if self.coefficient and b.tokens else {}


def check_coefficient(coefficient: float) -> None:
    if not 0 <= coefficient < float("inf"):
        raise ValueError(f"coefficient is {coefficient}\nuse a number of at least 0")
