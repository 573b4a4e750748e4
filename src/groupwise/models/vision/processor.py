"""The preprocessing of pictures for Idefics3 and SmolVLM: frames of equal size, and their text in a prompt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Picture
from groupwise.models.json_fields import flag, mapping, real, whole
from groupwise.models.vision.library_processors import library_processor, replace_placeholders, three_numbers
from groupwise.models.vision.picture_pixels import pixels_of_picture

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
"""The tokens of Idefics3 and SmolVLM: the placeholder of a feature, and the marks around and before a picture."""
HALF = [0.5, 0.5, 0.5]
"""The mean and the deviation of the three channels if a directory has none."""
LARGEST_SIDE = 4096
"""The most pixels of a side of a resized picture, as in transformers."""


@dataclass(frozen=True, slots=True)
class PictureProcessor:
    """How pictures become frames of pixels, and a text with a placeholder for each feature of each frame.

    A picture is one frame, or, if it is split, its parts in rows and the whole picture as a last one. Each frame has
    `side` x `side` pixels and `features` placeholders.
    """

    side: int
    features: int
    settings: Mapping[str, Any] = field(repr=False)
    library_class: str

    @property
    def control_tokens(self) -> Mapping[str, str]:
        """The control tokens of a picture that config.json names: their spellings by its fields."""
        return {"image_token_id": IMAGE}

    @property
    def placeholder(self) -> str:
        """The spelling of the placeholder, which a template writes once for each picture."""
        return IMAGE

    def grid(self, picture: Picture) -> tuple[int, int]:
        """The rows and columns of parts into which a picture is split; (0, 0) if it is not."""
        _, rows, columns = self._processor().get_number_of_image_patches(picture.height, picture.width, {})
        return rows, columns

    def feature_count(self, picture: Picture) -> int:
        """The number of a picture's features, each with a placeholder in its text."""
        rows, columns = self.grid(picture)
        return (rows * columns + 1) * self.features

    def frames(self, picture: Picture) -> Float[Tensor, "frames 3 side side"]:
        """The normalised pixels of a picture's frames, in float32."""
        processed = self._processor()(pixels_of_picture(picture).copy(), input_data_format="channels_last")
        return torch.from_numpy(np.stack([np.asarray(x, np.float32) for x in processed["pixel_values"][0]]))

    def text(self, picture: Picture) -> str:
        """The text of a picture in a prompt, as the processors of Idefics3 and SmolVLM write it."""
        rows, columns = self.grid(picture)
        placeholders = IMAGE * self.features
        parts = [
            f"{AROUND}<row_{row}_col_{column}>{placeholders}" + "\n" * (column == columns)
            for row in range(1, rows + 1)
            for column in range(1, columns + 1)
        ]
        return "".join(parts) + "\n" * bool(parts) + f"{AROUND}{WHOLE}{placeholders}{AROUND}"

    def fill(self, text: str, pictures: Sequence[Picture]) -> str:
        """A rendered prompt with the text of a picture at each placeholder. BadData for another number of them."""
        return replace_placeholders(text, IMAGE, pictures, self.text)

    def _processor(self) -> Any:
        return library_processor(self.library_class, json.dumps(self.settings, sort_keys=True))


def frame_processor(settings: Mapping[str, Any], config: Mapping[str, Any], library_class: str) -> PictureProcessor:
    """The processor with the settings of a directory, for a model's config.json. ValueError for unusable ones."""
    side, features = frame_of(config)
    edge = whole(mapping(settings, "max_image_size"), "longest_edge", low=1, high=LARGEST_SIDE)
    if edge != side:
        raise ValueError(f"max_image_size is {edge} pixels, and the vision tower takes frames of {side}")
    kept = {
        "do_resize": flag(settings, "do_resize", default=True),
        "do_image_splitting": flag(settings, "do_image_splitting", default=True),
        "do_rescale": flag(settings, "do_rescale", default=True),
        "do_normalize": flag(settings, "do_normalize", default=True),
        "do_pad": False,  # frames of one picture have equal sizes
        "return_row_col_info": False,
        "size": {"longest_edge": whole(mapping(settings, "size"), "longest_edge", low=1, high=LARGEST_SIDE)},
        "max_image_size": {"longest_edge": edge},
        "resample": whole(settings, "resample", low=0, high=5, default=1),
        "rescale_factor": real(settings, "rescale_factor", low=0, default=1 / 255),
        "image_mean": three_numbers({"image_mean": HALF, **settings}, "image_mean", low=-1e3),
        "image_std": three_numbers({"image_std": HALF, **settings}, "image_std", low=1e-6),
    }
    if kept["do_image_splitting"] and not kept["do_resize"]:
        raise ValueError("do_image_splitting needs do_resize: else the parts of a large picture have no bound")
    return PictureProcessor(side, features, kept, library_class)


def frame_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """The side of a frame in pixels, and its number of features. KeyError or ValueError for an invalid `config`."""
    vision = mapping(config, "vision_config")
    side = whole(vision, "image_size", low=1, high=LARGEST_SIDE, default=224)
    patch = whole(vision, "patch_size", low=1, high=side, default=32)
    scale = whole(config, "scale_factor", low=1, high=side, default=2)
    places, rest = divmod(side // patch, scale)
    if rest or not places:
        raise ValueError(f"{side // patch} patches on a side cannot be joined by {scale}")
    return side, places**2
