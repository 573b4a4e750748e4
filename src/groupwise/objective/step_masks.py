"""Masks of denoising steps of a flow policy."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Mask

__all__ = ["OutsideSteps"]


@dataclass(frozen=True, slots=True)
class OutsideSteps(Mask):
    """Keeps all denoising steps but `count` of them, from the step `first` on. Depth pruning, BranchGRPO.

    All steps are sampled; the others leave the loss with its divisor. arXiv:2509.06040.
    """

    first: int
    count: int = 4

    def __post_init__(self) -> None:
        if self.first < 0 or self.count < 1:
            raise ValueError(f"{self}: needs first >= 0 and count >= 1")

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        step = b.at_trained([sample.tokens for sample in b.samples], torch.long)
        return (step < self.first) | (step >= self.first + self.count)
