"""Weights of denoising steps of a flow policy."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Weight
from groupwise.models import StepConstantMeasure

__all__ = ["InverseStepLengthWeight"]

_LENGTH = StepConstantMeasure("dt")


@dataclass(frozen=True, slots=True)
class InverseStepLengthWeight(Weight):
    """`1 / |dt|`: the gradient of a centred ratio grows with the length of the step. GRPO-Guard, arXiv:2510.22319."""

    needs: ClassVar[frozenset[NeededMeasure]] = frozenset({_LENGTH})

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        return 1 / step[_LENGTH]
