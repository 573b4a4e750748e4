"""`PenaltyOfRole`: a penalty for the samples of one role."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Penalty
from groupwise.objective.penalties import KL
from groupwise.objective.role_masks import of_role

__all__ = ["PenaltyOfRole"]


@dataclass(frozen=True, slots=True)
class PenaltyOfRole(Penalty):
    """The `penalty` for tokens of samples with this role, and 0 for all others. It must be finite everywhere."""

    role: str = "answer"
    penalty: Penalty = KL(0.01)  # noqa: RUF009

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return torch.where(of_role(b, self.role), self.penalty(b), 0.0)
