"""`Queued`: compares consecutive answers with each other, whatever their prompts, instead of a prompt's answers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.advantages.group import Standardised
from groupwise.data import Advantage, Batch, Segments

__all__ = ["Queued"]


@dataclass(frozen=True, slots=True)
class Queued(Advantage):
    """Another advantage, whose groups are `size` consecutive samples of a role, whatever their prompts.

    The helpers' queue in M-GRPO's released code, arXiv:2511.13288. Samples of other roles have their own groups. The
    last group of an iteration may be smaller.
    """

    compares: ClassVar[bool] = True

    role: str = "helper"
    size: int = 8
    advantage: Advantage = Standardised()  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ValueError(f"{self}: needs size >= 2: advantages compare the samples of a group")

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        queued = torch.tensor([s.role == self.role for s in b.samples], dtype=torch.bool, device=x.device)
        place = torch.arange(int(queued.sum()), device=x.device)
        index = b.groups.index.clone()
        index[queued] = b.groups.count + place // self.size
        return self.advantage(x, b.having(groups=Segments(index, b.groups.count + -(-len(place) // self.size))))
