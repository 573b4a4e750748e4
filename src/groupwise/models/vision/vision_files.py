"""Reads and writes the directory of a vision-language model, by the modules of transformers."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.core import BadData
from groupwise.models.decoder.transformers_files import (
    NAME,
    bad_data,
    load_modules,
    quiet,
    refuse_counts,
    text_sizes,
    with_checked_packing,
    write_transformers,
)
from groupwise.models.json_fields import short, whole
from groupwise.models.model_json_files import read_json
from groupwise.models.model_kind import ModelKind, ModelLoadOptions, write_json
from groupwise.models.tokenizer import Tokenizer, stored_tokenizer
from groupwise.models.vision.library_processors import FILES
from groupwise.models.vision.vision_families import FAMILIES, AnyProcessor, read_processor
from groupwise.models.vision.vision_model import VISION_ATTENTION, VisionModel, VisionSizes

UNRELATED = ("architectures", "dtype", "torch_dtype", "transformers_version", "eos_token_id", "pad_token_id")
"""Fields of a configuration that do not belong to the modules."""


class VisionKind(ModelKind):
    """Vision-language models of the families in `FAMILIES`."""

    name = VisionSizes.kind_name
    config_description = "a vision-language model"

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return str(config.get("model_type")) in FAMILIES

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> VisionSizes:
        return sizes_of_config(path, library_config(path, config), config)

    def read(self, path: Path, shape: VisionSizes, loading: ModelLoadOptions) -> VisionModel:
        import transformers

        processor = read_processor(path)
        attention = {"": NAME, "text_config": NAME, "vision_config": VISION_ATTENTION}
        loader = transformers.AutoModelForImageTextToText.from_pretrained
        causal = load_modules(path, loader, dtype=loading.dtype, attention=attention)
        adapted = FAMILIES[str(read_json(path / "config.json")["model_type"])].model
        model = adapted(causal.to(loading.device), shape, processor).requires_grad_(True)
        return with_checked_packing(path, model)

    def outline(self, path: Path, shape: VisionSizes, *, trust_remote_code: bool) -> nn.Module:
        import transformers

        failure = ("cannot be built by transformers", "fetch the directory again")
        with quiet(), bad_data(path, *failure), torch.device("meta"):
            config = library_config(path, read_json(path / "config.json"))
            return transformers.AutoModelForImageTextToText.from_config(config)

    def config(self, model: VisionModel) -> dict[str, Any]:
        return {}

    def write(self, model: VisionModel, path: Path, config: Mapping[str, Any]) -> None:
        write_transformers(model, path)

    def tokenizer(self, path: Path) -> Tokenizer:
        """The tokenizer, with the model's image processor, and with its files. BadData if they do not fit."""
        config = read_json(path / "config.json")
        processor = read_processor(path)
        vocabulary = library_config(path, config).text_config.vocab_size
        tokenizer = replace(
            stored_tokenizer(path, vocabulary=vocabulary, more_files=FILES), picture_processor=processor
        )
        check_control_tokens(path, config, tokenizer, processor)
        return tokenizer

    def set_up(self, model: VisionModel, settings: Mapping[str, Any]) -> None:
        if settings["freeze_vision_tower"]:
            model.freeze_tower()


def sizes_of_config(path: Path, library: Any, config: Mapping[str, Any]) -> VisionSizes:
    """The sizes in a configuration, as transformers reads it and as the file has it."""
    sizes = text_sizes(path, library.text_config)
    placeholder = whole(config, "image_token_id", low=0, high=sizes["vocabulary_size"] - 1)
    heads, tower_heads = (int(part.num_attention_heads) for part in (library.text_config, library.vision_config))
    return VisionSizes(**sizes, placeholder=placeholder, heads=heads, tower_heads=tower_heads)


def vision_sizes(model: nn.Module) -> VisionSizes | None:
    """The sizes of a vision-language model, or of its outline; None for another model."""
    if isinstance(model, VisionModel) and isinstance(model.shape, VisionSizes):
        return model.shape
    if (config := vision_config(model)) is None:
        return None
    return sizes_of_config(Path("config.json"), config, {"image_token_id": config.image_token_id})


def vision_config(model: nn.Module) -> Any:
    """The configuration of transformers of a vision-language model, or of its outline; None for another model."""
    config = getattr(getattr(model, "causal", model), "config", None)
    return config if str(getattr(config, "model_type", "")) in FAMILIES else None


def architecture_text(model: nn.Module) -> str:
    """The architecture of a vision-language model, or of its outline, as text. Equal texts mean equal modules."""

    def fields(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {str(n): fields(x) for n, x in value.items() if n not in UNRELATED and not str(n).startswith("_")}

    return json.dumps(fields(vision_config(model).to_dict()), sort_keys=True, default=str)


def write_architecture(model: VisionModel, path: Path, *, tokenizer: Tokenizer) -> None:
    """Write a directory for a model with other weights: configuration, tokenizer and processor, no weights."""
    tokenizer.save(path)
    config = {**vision_config(model).to_dict(), "architectures": [type(model.causal).__name__]}
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"eos_token_id": sorted(tokenizer.eos_ids)})


def library_config(path: Path, config: Mapping[str, Any]) -> Any:
    """The configuration as transformers reads it. BadData for one that it refuses."""
    from transformers import AutoConfig

    refuse_counts(path, config)
    with quiet(), bad_data(path, "has a config.json that transformers refuses", "fix it, or fetch the file again"):
        return AutoConfig.from_pretrained(path, local_files_only=True)


def check_control_tokens(path: Path, config: Mapping[str, Any], tokenizer: Tokenizer, processor: AnyProcessor) -> None:
    """BadData unless the tokenizer has a picture's tokens as control tokens, which a text of a row never becomes."""
    for field, spelling in processor.control_tokens.items():
        found = tokenizer.control_tokens.ids_by_spelling.get(spelling)
        if found is None or found != config.get(field):
            raise BadData(
                f"the tokenizer in {path} does not fit the pictures of the model in the same directory",
                evidence=f"{spelling} is the special token {found}, {field} is {short(config.get(field))}",
                fix="copy the tokenizer.json that the model was trained with",
            )
