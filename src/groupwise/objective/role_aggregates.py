"""`role_mean`: the losses of roles are added."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Aggregate, Batch, Segments, Weighs

__all__ = ["role_mean"]


@dataclass(frozen=True, slots=True)
class RoleMean(Aggregate):
    """The sum over roles of `sequence_mean` within the role: live sequences of a role weigh the same.

    With samples of a single role it is `sequence_mean`. Co-GRPO, arXiv:2512.22288: the losses of tokens and schedule.
    """

    name: ClassVar[str] = "role_mean"
    weighs: ClassVar[Weighs] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s, roles = step.sequences, by_role(step)
        live = roles.spread(roles.total((s.lengths > 0).to(step.advantage)))
        return s.spread(1 / s.size(step.advantage).clamp(min=1) / live.clamp(min=1))


def by_role(step: Batch) -> Segments:
    """The samples of a step in segments: one for each role, in alphabetical order."""
    names = sorted({sample.role for sample in step.samples})
    number = [names.index(sample.role) for sample in step.samples]
    return Segments(torch.tensor(number, dtype=torch.long, device=step.place.device), len(names))


role_mean = RoleMean()
