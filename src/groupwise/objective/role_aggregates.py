"""`role_mean`: the losses of roles are added."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Weighs
from groupwise.objective.aggregates import sequence_mean

SOCKET = "Aggregate"
__all__ = ["role_mean"]


@dataclass(frozen=True, slots=True)
class RoleMean:
    """The sum over roles of `sequence_mean` within the role: live sequences of a role weigh the same.

    With samples of a single role it is `sequence_mean`. Co-GRPO, arXiv:2512.22288: the losses of tokens and schedule.
    """

    name: ClassVar[str] = "role_mean"
    weighs: ClassVar[Weighs] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        roles = sorted({s.role for s in step.samples})
        number = torch.tensor([roles.index(s.role) for s in step.samples], device=step.place.device)
        live = (step.sequences.lengths > 0).to(step.advantage)
        size = torch.stack([(live * (number == i)).sum() for i in range(len(roles))] or [live.sum()])
        share = sequence_mean(step) * max(step.sequences.live, 1)
        return share / step.sequences.spread(size.clamp(min=1)[number] if len(roles) else live)


role_mean = RoleMean()
