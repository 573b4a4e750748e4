"""Qwen2.5-VL as a `Backbone`: each token has a position in time, in rows and in columns (M-RoPE).

Text has three equal positions. The features of a picture have the position of its first one in time, plus their row and
their column in the grid. The text after it goes on at the largest position, so a picture of h x w features takes up
max(h, w) positions (Qwen2-VL, arXiv:2409.12191, section 2.1).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from groupwise.data import AttentionLayout, ContentSpan, Ids
from groupwise.models.vision.qwen_processor import QwenPictureProcessor
from groupwise.models.vision.vision_model import VisionModel, placeholders

Grid = tuple[int, int]
"""The rows and columns of a picture's features."""


class QwenVisionModel(VisionModel):
    """Adapts Qwen2.5-VL of transformers to `Backbone`."""

    processor: QwenPictureProcessor

    @property
    def tower(self) -> tuple[nn.Module, ...]:
        """The vision tower, whose last module merges patches to features of the decoder."""
        return (self.causal.get_submodule("model.visual"),)

    def position_ids(self, layout: AttentionLayout) -> Int[Tensor, "..."]:
        """The positions of packed tokens [rows, 1, n]: three rows, or one if no context has pictures.

        The position of a new token alone is from the engine, by `position_shift`.
        """
        positions = super().position_ids(layout)
        spans: Sequence[ContentSpan] = getattr(layout, "content_spans", ())
        if not spans:
            return positions
        rows = positions.repeat(3, 1, 1)
        for span in spans:
            grids = self._grids(span.content_hash)
            of_context = torch.from_numpy(rotary_positions(span.context, self.placeholder, grids))
            rows[:, 0, span.start : span.start + len(span.context)] = of_context.to(rows.device)
            rows[:, 0, torch.tensor(span.continuation, dtype=torch.long, device=rows.device)] += shift(grids)
        return rows

    def position_shift(self, content_hash: str) -> int:
        return shift(self._grids(content_hash))

    def _grids(self, content_hash: str) -> list[Grid]:
        return [self.processor.grid(picture) for picture in self.pictures[content_hash]]

    def _computed(self, content_hash: str) -> Float[Tensor, "features width"]:
        (tower,) = self.tower
        weight = next(tower.parameters())
        pictures = self.pictures[content_hash]
        pixels = [self._pixels.get(p.sha256, lambda p=p: self.processor.patches(p)) for p in pictures]
        merged = self.processor.merge_size
        grids = torch.tensor([[1, rows * merged, columns * merged] for rows, columns in self._grids(content_hash)])
        output: Any = tower(torch.cat(pixels).to(weight.device, weight.dtype), grid_thw=grids.to(weight.device))
        return output.pooler_output


def shift(grids: Sequence[Grid]) -> int:
    """The position of a text after pictures, minus its index: 0 or less."""
    return sum(max(rows, columns) - rows * columns for rows, columns in grids)


def rotary_positions(context: Ids, placeholder: int, grids: Sequence[Grid]) -> NDArray[np.int64]:
    """The positions [3, n] of a context in time, rows and columns. BadData for too few placeholders.

    >>> rotary_positions((7, 9, 9, 9, 9, 9, 9, 8), 9, [(2, 3)])
    array([[0, 1, 1, 1, 1, 1, 1, 4],
           [0, 1, 1, 1, 2, 2, 2, 4],
           [0, 1, 2, 3, 1, 2, 3, 4]])
    """
    positions = np.tile(np.arange(len(context)), (3, 1))
    places = placeholders(context, placeholder, sum(rows * columns for rows, columns in grids))
    for rows, columns in grids:
        at, places = places[: rows * columns], places[rows * columns :]
        row, column = np.divmod(np.arange(rows * columns), columns)
        positions[:, at] = positions[:, at[:1]] + np.stack([0 * row, row, column])
        positions[:, at[-1] + 1 :] += shift([(rows, columns)])
    return positions
