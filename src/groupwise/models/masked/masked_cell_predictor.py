"""`MaskedCellPredictor`: a small bidirectional transformer that predicts the symbols of masked cells."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.data import Ids
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.models.masked.unmasking_schedule import MOST_UNMASKING_STEPS

__all__ = ["MaskedCellPredictor", "MaskedShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedShape(ModelSizes):
    """The sizes of a masked model: its `cells`, the `symbols` that fill them, `prompt_vocabulary`, and `prompt_length`.

    Ids are, in this order: the knobs of a step, the end token, the commit of a symbol, a symbol, and a word.
    """

    kind_name: ClassVar[str] = "masked"
    kind_label: ClassVar[str] = "masked model"
    generates_whole_answers: ClassVar[bool] = True

    kv_heads: int = 0
    head_dim: int = 0
    max_positions: int = 1 << 20
    cells: int
    symbols: int
    prompt_vocabulary: int
    prompt_length: int
    width: int
    heads: int

    @property
    def end(self) -> int:
        """The id of the end token; the knobs of steps have the ids below it."""
        return MOST_UNMASKING_STEPS

    @property
    def first_commit(self) -> int:
        return self.end + 1

    @property
    def first_symbol(self) -> int:
        return self.first_commit + self.symbols

    @property
    def first_word(self) -> int:
        return self.first_symbol + self.symbols

    @property
    def prompt(self) -> str:
        return (
            f"{self.prompt_length} word{'s' if self.prompt_length > 1 else ''} of its vocabulary, and no other tokens"
        )

    def takes(self, words: Ids) -> bool:
        return len(words) == self.prompt_length and min(words) >= self.first_word

    def longest(self, steps: int) -> int:
        """The most tokens of a sample: knobs, commits and cells. Each step but the last leaves a cell masked."""
        return steps + self.cells + (steps - 1) * (self.cells - 1) + self.cells


class MaskedCellPredictor(nn.Module):
    """A bidirectional transformer: logits of each masked cell's symbol, from the canvas and the prompt's words."""

    def __init__(self, shape: MaskedShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self.cell = nn.Embedding(shape.cells * (shape.symbols + 1), width)
        self.word = nn.Embedding(shape.prompt_length * shape.prompt_vocabulary, width)
        self.attention = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(shape.layers))
        self.mixed = nn.ModuleList(nn.Linear(width, width) for _ in range(shape.layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(shape.layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(shape.layers))
        self.leave = nn.Linear(width, shape.symbols)

    def forward(
        self, canvas: Int[Tensor, "n cells"], words: Int[Tensor, "n prompt_length"]
    ) -> Float[Tensor, "n cells symbols"]:
        shape, width = self.shape, self.shape.width
        cell = torch.arange(shape.cells, device=canvas.device) * (shape.symbols + 1)
        first = torch.arange(shape.prompt_length, device=words.device) * shape.prompt_vocabulary
        x = torch.cat([self.cell(canvas + cell), self.word(words - shape.first_word + first)], 1)
        for attention, mixed, up, down in zip(self.attention, self.mixed, self.up, self.down):
            q, k, v = attention(F.layer_norm(x, (width,))).unflatten(-1, (3, shape.heads, -1)).permute(2, 0, 3, 1, 4)
            weight = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            x = x + mixed((weight @ v).transpose(1, 2).flatten(2))
            x = x + down(F.silu(up(F.layer_norm(x, (width,)))))
        return self.leave(F.layer_norm(x[:, : shape.cells], (width,)))
