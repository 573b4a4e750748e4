"""The pictures of a prompt as vLLM takes them: preprocessed here, and placed in our own tokens.

vLLM neither expands placeholders nor preprocesses pictures, so tokens and pixels are those of the learner. This file
runs without vLLM.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.data import Ids, Picture
from groupwise.models.vision.picture_store import TensorCache
from groupwise.models.vision.qwen_processor import QwenPictureProcessor
from groupwise.models.vision.vision_families import AnyProcessor
from groupwise.models.vision.vision_model import CACHED_PIXELS, placeholders

IMAGE = "image"
"""vLLM's name of this kind of content."""
ARCHITECTURES = {"smolvlm": "Idefics3ForConditionalGeneration"}
"""vLLM's class for a `model_type`, if not its own: those of SmolVLM differ in a processor that needs torchvision."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPicture:
    """A picture of a prompt: its tensors by vLLM's names, and its place in the tokens.

    `pixel_rows` have a row for each frame or patch, `other` have one value for the picture. `is_feature` says of the
    tokens from `offset` on which ones are placeholders of its features.
    """

    sha256: str
    pixel_rows: dict[str, Tensor]
    other: dict[str, Tensor]
    offset: int
    is_feature: tuple[bool, ...]


class PicturePlacer:
    """Preprocesses pictures once, and finds their placeholders in a context."""

    def __init__(self, processor: AnyProcessor, placeholder: int) -> None:
        self._processor, self._placeholder = processor, placeholder
        self._pixels = TensorCache(CACHED_PIXELS)

    def place(self, context: Ids, pictures: Sequence[Picture]) -> list[PlacedPicture]:
        """The pictures of a context in their order. BadData for fewer placeholders than features."""
        counts = [self._processor.feature_count(picture) for picture in pictures]
        places = placeholders(context, self._placeholder, sum(counts))
        placed = []
        for picture, count in zip(pictures, counts):
            mine, places = places[:count], places[count:]
            features = set(mine)
            is_feature = tuple(i in features for i in range(mine[0], mine[-1] + 1))
            placed.append(PlacedPicture(picture.sha256, *self._tensors(picture), mine[0], is_feature))
        return placed

    def _tensors(self, picture: Picture) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors with a row for each frame or patch, and those with one value."""
        processor = self._processor
        if isinstance(processor, QwenPictureProcessor):
            patches = self._pixels.get(picture.sha256, lambda: processor.patches(picture))
            grid = torch.tensor([1, *(features * processor.merge_size for features in processor.grid(picture))])
            return {"pixel_values": patches}, {"image_grid_thw": grid}
        frames = self._pixels.get(picture.sha256, lambda: processor.frames(picture))
        mask = torch.ones(len(frames), *frames.shape[-2:], dtype=torch.bool)
        return {"pixel_values": frames, "pixel_attention_mask": mask}, {"num_patches": torch.tensor(len(frames))}
