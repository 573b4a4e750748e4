"""Masks by the role of a sample, such as `answer` or `schedule`."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Mask

__all__ = ["OfRole", "TakingTurns"]


def of_role(b: Batch, role: str) -> Bool[Tensor, " n"]:
    """For each token, whether its sample has the role."""
    has = torch.tensor([s.role == role for s in b.samples], dtype=torch.bool, device=b.place.device)
    return b.sequences.spread(has)


@dataclass(frozen=True, slots=True)
class OfRole(Mask):
    """Selects the tokens of samples with this role."""

    role: str

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        return of_role(b, self.role)


@dataclass(frozen=True, slots=True)
class TakingTurns(Mask):
    """Selects the tokens of the role `roles[turn]`; a schedule moves `turn`, so that roles are trained by turns.

    Weights that only other roles read get no gradient, and AdamW leaves such weights as they are, to the bit.
    """

    roles: tuple[str, ...]
    turn: float = 0.0

    def __post_init__(self) -> None:
        if not self.roles or not 0 <= self.turn < len(self.roles):
            raise ValueError(f"{self}\nneeds one or more roles, and turn from 0 to below their number")

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        return of_role(b, self.roles[int(self.turn)])
