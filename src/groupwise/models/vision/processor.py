"""The preprocessing of pictures: transformers' own image processors, and the text of a picture in a prompt.

Only the settings of a model directory are read, into a class of transformers that its `model_type` selects; code of
the directory is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.core import BadData, MissingRequirement
from groupwise.data import Picture
from groupwise.models.json_fields import flag, mapping, real, short, whole
from groupwise.models.model_json_files import read_json
from groupwise.models.vision.picture_pixels import pixels_of_picture

FILES = ("processor_config.json", "preprocessor_config.json")
"""The files with the settings of an image processor. The first one, of newer directories, has them in a table."""
PROCESSORS = {"idefics3": "Idefics3ImageProcessor", "smolvlm": "SmolVLMImageProcessor"}
"""The image processors of transformers, by the model_type of the model."""
ENDINGS = ("", "Fast", "Pil")
"""The endings of an image processor's name in a directory. All name the same preprocessing; ours is that of Pillow."""
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
"""The tokens of Idefics3 and SmolVLM: the placeholder of a feature, and the marks around and before a picture."""
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
    def placeholder(self) -> str:
        """The spelling of the placeholder, which a template writes once for each picture."""
        return IMAGE

    def grid(self, picture: Picture) -> tuple[int, int]:
        """The rows and columns of parts into which a picture is split; (0, 0) if it is not."""
        _, rows, columns = self._processor().get_number_of_image_patches(picture.height, picture.width, {})
        return rows, columns

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
        """A rendered prompt with each placeholder that its template wrote replaced by the text of a picture.

        BadData if there are not as many as pictures.
        """
        before, *after = text.split(IMAGE)
        if len(after) != len(pictures):
            what = f"the template writes {len(after)} placeholders for {len(pictures)} pictures"
            fix = 'give each picture a content part {"type": "image"}, and check that the chat template writes them'
            raise BadData(what, fix=fix)
        return before + "".join(self.text(picture) + part for picture, part in zip(pictures, after))

    def _processor(self) -> Any:
        return library_processor(self.library_class, json.dumps(self.settings, sort_keys=True))


@lru_cache(8)
def library_processor(library_class: str, settings: str) -> Any:
    """The image processor of transformers with these settings, as JSON. `MissingRequirement` without Pillow."""
    import transformers

    try:
        return getattr(transformers, f"{library_class}Pil")(**json.loads(settings))
    except ImportError as error:
        fix = "pip install 'groupwise[pictures]'"
        raise MissingRequirement("pictures need the package pillow", evidence=str(error), fix=fix) from None


def read_processor(path: Path, config: Mapping[str, Any]) -> PictureProcessor:
    """The image processor in a model directory. BadData for one that brings code, or unusable settings."""
    name = next((name for name in FILES if (path / name).is_file()), FILES[-1])
    stored = read_json(path / name)
    try:
        settings = mapping(stored, "image_processor") if "image_processor" in stored else stored
        return _processor_of(settings, stored, config)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{path / name} describes no image processor that is supported"
        raise BadData(what, evidence=str(error), fix="fetch the file again, or take SmolVLM or Idefics3") from error


def _processor_of(
    settings: Mapping[str, Any], stored: Mapping[str, Any], config: Mapping[str, Any]
) -> PictureProcessor:
    library_class = PROCESSORS[str(config["model_type"])]
    for table in (settings, stored):
        if table.get("auto_map"):
            raise ValueError(f"it brings its own code, which is never executed: auto_map {short(table['auto_map'])}")
    kind = settings.get("image_processor_type", library_class)
    if kind not in [f"{name}{ending}" for name in PROCESSORS.values() for ending in ENDINGS]:
        raise ValueError(f"image_processor_type is {short(kind)}: it must be {library_class}")
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
        "image_mean": _channels(settings, "image_mean", -1e3),
        "image_std": _channels(settings, "image_std", 1e-6),
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


def _channels(settings: Mapping[str, Any], name: str, low: float) -> list[float]:
    values = settings.get(name, [0.5, 0.5, 0.5])
    if not isinstance(values, list) or len(values) != 3:
        raise ValueError(f"{name} is {short(values)}: it must be three numbers")
    return [real({name: value}, name, low=low, high=1e3) for value in values]
