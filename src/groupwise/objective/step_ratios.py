"""Ratios of denoising steps of a flow policy."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Ratio
from groupwise.models import StepConstantMeasure, StepKL
from groupwise.objective.ratios import bounded

__all__ = ["CentredStepRatio"]

_STD, _MOVED = StepConstantMeasure("std"), StepKL("policy")


@dataclass(frozen=True, slots=True)
class CentredStepRatio(Ratio):
    """`exp(S (log pi - log pi_old + KL(pi_old || pi)))`, with S the std of the step's noise.

    The log-ratio of a Gaussian step has the mean -KL and the spread 1 / S; this one has the mean 0 and no S in its
    spread. It equals `exp(mean (mu - mu_old) e)` for the noise e of the step. GRPO-Guard, arXiv:2510.22319.
    """

    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({_STD, _MOVED})

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return bounded(b[_STD] * (b.logp - b.logp_old + b[_MOVED])).exp()
