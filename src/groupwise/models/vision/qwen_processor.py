"""The preprocessing of pictures for Qwen2.5-VL: patches in a picture's proportions, and their text in a prompt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.core import BadData
from groupwise.data import Picture
from groupwise.models.json_fields import flag, mapping, real, whole
from groupwise.models.vision.library_processors import library_processor, replace_placeholders, three_numbers
from groupwise.models.vision.picture_pixels import pixels_of_picture

PAD, START, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
"""The tokens of Qwen-VL: the placeholder of a feature, and the marks before and after a picture."""
MOST_PIXELS = 1 << 24
"""The most pixels of a resized picture."""
LARGEST_PATCH = 256
"""The most pixels on a side of a patch, and patches on a side of a feature."""
PATCH, MERGED = 14, 2
"""The defaults of transformers: pixels on a side of a patch; patches on a side of a feature, and in time."""


@dataclass(frozen=True, slots=True)
class QwenPictureProcessor:
    """How a picture becomes patches, and a text with a placeholder for each feature.

    A feature is a square of patches with `merge_size` on a side. A picture is resized to whole features, nearly in its
    proportions, between the smallest and the largest area.
    """

    patch_size: int
    merge_size: int
    settings: Mapping[str, Any] = field(repr=False)
    library_class: str

    @property
    def control_tokens(self) -> Mapping[str, str]:
        """The control tokens of a picture that config.json names: their spellings by its fields."""
        return {"image_token_id": PAD, "vision_start_token_id": START, "vision_end_token_id": END}

    @property
    def placeholder(self) -> str:
        """The spelling of the placeholder, which a template writes once for each picture, between its marks."""
        return PAD

    def grid(self, picture: Picture) -> tuple[int, int]:
        """The rows and columns of a picture's features. BadData for a picture that is too long for its width."""
        self._processor()  # without Pillow, the error that says so
        library = import_module("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
        size, side = self.settings["size"], self.patch_size * self.merge_size
        try:
            height, width = library.smart_resize(
                picture.height, picture.width, side, size["shortest_edge"], size["longest_edge"]
            )
        except ValueError as error:
            what = f"a picture of {picture.width} x {picture.height} pixels does not fit the model"
            raise BadData(what, evidence=str(error), fix="crop the picture, or remove it from the data") from None
        return height // side, width // side

    def feature_count(self, picture: Picture) -> int:
        """The number of a picture's features, each with a placeholder in its text."""
        rows, columns = self.grid(picture)
        return rows * columns

    def patches(self, picture: Picture) -> Float[Tensor, "patches numbers"]:
        """The normalised pixels of a picture's patches, in float32, ordered by features."""
        pixels = pixels_of_picture(picture).copy()
        return torch.from_numpy(
            np.asarray(self._processor()(pixels, input_data_format="channels_last")["pixel_values"])
        )

    def text(self, picture: Picture) -> str:
        """The text of a picture in a prompt, with the marks around it."""
        return f"{START}{self._placeholders(picture)}{END}"

    def fill(self, text: str, pictures: Sequence[Picture]) -> str:
        """A rendered prompt with a picture's placeholders in place of each one. BadData for another number of them."""
        return replace_placeholders(text, PAD, pictures, self._placeholders)

    def _placeholders(self, picture: Picture) -> str:
        return PAD * self.feature_count(picture)

    def _processor(self) -> Any:
        return library_processor(self.library_class, json.dumps(self.settings, sort_keys=True))


def patch_processor(settings: Mapping[str, Any], config: Mapping[str, Any], library_class: str) -> QwenPictureProcessor:
    """The processor with the settings of a directory, for a model's config.json. ValueError for unusable ones."""
    vision = mapping(config, "vision_config")
    defaults = {"patch_size": PATCH, "temporal_patch_size": MERGED, "merge_size": MERGED}
    sizes = {n: whole(settings, n, low=1, high=LARGEST_PATCH, default=size) for n, size in defaults.items()}
    for name, of_tower in zip(sizes, ("patch_size", "temporal_patch_size", "spatial_merge_size")):
        expected = whole(vision, of_tower, low=1, high=LARGEST_PATCH, default=defaults[name])
        if sizes[name] != expected:
            raise ValueError(f"{name} is {sizes[name]}, and the vision tower has {of_tower} {expected}")
    if not flag(settings, "do_resize", default=True):
        raise ValueError("do_resize is false: pictures must be resized to whole patches")
    edges = {"shortest_edge": settings.get("min_pixels"), "longest_edge": settings.get("max_pixels")}
    area = {**mapping(settings, "size"), **{edge: value for edge, value in edges.items() if value is not None}}
    smallest = whole(area, "shortest_edge", low=1, high=MOST_PIXELS)
    largest = whole(area, "longest_edge", low=smallest, high=MOST_PIXELS)
    kept = {
        **sizes,
        "do_resize": True,
        "do_rescale": flag(settings, "do_rescale", default=True),
        "do_normalize": flag(settings, "do_normalize", default=True),
        "size": {"shortest_edge": smallest, "longest_edge": largest},
        "resample": whole(settings, "resample", low=0, high=5, default=3),
        "rescale_factor": real(settings, "rescale_factor", low=0, default=1 / 255),
        "image_mean": three_numbers(settings, "image_mean", low=-1e3),
        "image_std": three_numbers(settings, "image_std", low=1e-6),
    }
    return QwenPictureProcessor(sizes["patch_size"], sizes["merge_size"], kept, library_class)
