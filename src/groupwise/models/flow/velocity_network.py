"""`VelocityNetwork`: a small network that predicts the velocity of a state, given the time and a prompt's words."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.data import Ids
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.flow.denoising_settings import MOST_STEPS

__all__ = ["FlowShape", "VelocityNetwork"]

FREQUENCIES = (1, 2, 4, 8)
END = MOST_STEPS
"""The id of the end token; steps have the ids below it, words those above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowShape(ModelSizes):
    """The sizes of a flow model: the shape of its states, its `prompt_vocabulary`, and the `prompt_length` in words."""

    kind_name: ClassVar[str] = "flow"
    kind_label: ClassVar[str] = "flow model"
    generates_whole_answers: ClassVar[bool] = True
    tokens_are_denoising_steps: ClassVar[bool] = True

    kv_heads: int = 0
    head_dim: int = 0
    max_positions: int = 1 << 20
    state_shape: tuple[int, ...]
    prompt_vocabulary: int
    prompt_length: int
    width: int

    @property
    def graded(self) -> tuple[int, ...]:
        """The shape of the final state that verifiers see."""
        return self.state_shape

    @property
    def prompt(self) -> str:
        return (
            f"{self.prompt_length} word{'s' if self.prompt_length > 1 else ''} of its vocabulary, and no other tokens"
        )

    def takes(self, words: Ids) -> bool:
        return len(words) == self.prompt_length and min(words) > END


class VelocityNetwork(nn.Module):
    """A residual MLP over the flattened state. Each position of the prompt has its own embedding of each word."""

    def __init__(self, shape: FlowShape) -> None:
        super().__init__()
        self.shape, size, width = shape, prod(shape.state_shape), shape.width
        self.enter = nn.Linear(size, width)
        self.time = nn.Linear(1 + 2 * len(FREQUENCIES), width)
        self.word = nn.Embedding(shape.prompt_length * shape.prompt_vocabulary, width)
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(shape.layers))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(shape.layers))
        self.leave = nn.Linear(width, size)

    def forward(
        self, x: Float[Tensor, " n *state"], t: Float[Tensor, " n"], words: Int[Tensor, "n prompt_length"]
    ) -> Float[Tensor, " n *state"]:
        angles = torch.pi * t[:, None] * torch.tensor(FREQUENCIES, dtype=t.dtype, device=t.device)
        time = torch.cat([t[:, None], angles.cos(), angles.sin()], 1)
        first = torch.arange(words.shape[1], device=words.device) * self.shape.prompt_vocabulary
        h = self.enter(x.flatten(1)) + self.time(time) + self.word(words - (END + 1) + first).sum(1)
        for up, down in zip(self.up, self.down):
            h = h + down(F.silu(up(h)))
        return self.leave(F.silu(h)).view_as(x)
