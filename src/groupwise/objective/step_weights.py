"""Weights of denoising steps of a flow policy."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Measure, Weight
from groupwise.models import StepConstant

__all__ = ["EqualisedSteps", "PerStepLength"]

_LENGTH, _SENSITIVITY = StepConstant("dt"), StepConstant("sensitivity")


@dataclass(frozen=True, slots=True)
class PerStepLength(Weight):
    """`1 / |dt|`: the gradient of a centred ratio grows with the length of the step. GRPO-Guard, arXiv:2510.22319."""

    needs: ClassVar[frozenset[Measure]] = frozenset({_LENGTH})

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        return 1 / step[_LENGTH]


@dataclass(frozen=True, slots=True)
class EqualisedSteps(Weight):
    """`median(n) / n`, with n the sensitivity of a step: the change of its mean, in units of std, with the velocity.

    Without it, the gradient of a log-ratio is largest at the steps with the least noise. The median is over the trained
    steps of the optimizer step. SAGE-GRPO, arXiv:2603.21872.
    """

    needs: ClassVar[frozenset[Measure]] = frozenset({_SENSITIVITY})

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        n = step[_SENSITIVITY]
        return n.quantile(0.5) / n if len(n) else n
