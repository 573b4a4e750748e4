"""`TeacherCertainty`: weights tokens by how certain a teacher model is."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Entropy, Measure, Weight
from groupwise.objective.gates import HasView

__all__ = ["TeacherCertainty"]


@dataclass(frozen=True, slots=True)
class TeacherCertainty(Weight):
    """Weight `exp(-beta H) / mean`, H the entropy of a teacher that reads the prompt `view`; 1 for answers without it.

    SRPO, arXiv:2604.02288, equation 9.
    """

    beta: float = 1.0
    model: str = "teacher"
    view: str = "sibling"

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Entropy(self.model, self.view)})

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        has = HasView(self.view)(step)
        w = torch.where(has, (-self.beta * step[Entropy(self.model, self.view)]).exp(), 0.0)
        mean = w.sum() / has.sum().clamp(min=1)
        return torch.where(has, w / mean.masked_fill(mean == 0, 1.0), 1.0)
