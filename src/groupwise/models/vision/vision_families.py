"""The families of vision-language models, by the `model_type` of their config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core import BadData
from groupwise.models.model_json_files import read_json
from groupwise.models.vision.library_processors import settings_file, stored_settings
from groupwise.models.vision.processor import PictureProcessor, frame_processor
from groupwise.models.vision.qwen_processor import QwenPictureProcessor, patch_processor
from groupwise.models.vision.qwen_vision_model import QwenVisionModel
from groupwise.models.vision.vision_model import VisionModel

AnyProcessor = PictureProcessor | QwenPictureProcessor


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """The image processors of transformers that directories of a family name, ours first, and the model around it."""

    processor_names: tuple[str, ...]
    read_processor: Callable[[Mapping[str, Any], Mapping[str, Any], str], AnyProcessor]
    model: type[VisionModel]


IDEFICS, SMOLVLM, QWEN = "Idefics3ImageProcessor", "SmolVLMImageProcessor", "Qwen2VLImageProcessor"
FAMILIES: Mapping[str, VisionFamily] = {
    "idefics3": VisionFamily((IDEFICS, SMOLVLM), frame_processor, VisionModel),
    "smolvlm": VisionFamily((SMOLVLM, IDEFICS), frame_processor, VisionModel),
    "qwen2_5_vl": VisionFamily((QWEN,), patch_processor, QwenVisionModel),
}


def read_processor(path: Path) -> AnyProcessor:
    """The image processor in a model directory. BadData for one that brings code, or unusable settings."""
    config, file = read_json(path / "config.json"), settings_file(path)
    try:
        family = FAMILIES[str(config["model_type"])]
        settings = stored_settings(file, family.processor_names)
        return family.read_processor(settings, config, family.processor_names[0])
    except (KeyError, TypeError, ValueError) as error:
        what = f"{file} describes no image processor that is supported"
        fix = "fetch the file again, or take SmolVLM, Idefics3 or Qwen2.5-VL"
        raise BadData(what, evidence=str(error), fix=fix) from error
