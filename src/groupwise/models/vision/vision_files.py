"""Reads and writes the directory of a vision-language model, by the modules of transformers."""

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
from groupwise.models.model_kind import ModelKind, ModelLoadOptions
from groupwise.models.tokenizer import Tokenizer, stored_tokenizer
from groupwise.models.vision.library_processors import FILES
from groupwise.models.vision.vision_families import FAMILIES, AnyProcessor, read_processor
from groupwise.models.vision.vision_model import VISION_ATTENTION, VisionModel, VisionSizes


class VisionKind(ModelKind):
    """Vision-language models of the families in `FAMILIES`."""

    name = VisionSizes.kind_name
    config_description = "a vision-language model"

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return str(config.get("model_type")) in FAMILIES

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> VisionSizes:
        library = library_config(path, config)
        sizes = text_sizes(path, library.text_config)
        placeholder = whole(config, "image_token_id", low=0, high=sizes["vocabulary_size"] - 1)
        return VisionSizes(**sizes, placeholder=placeholder)

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
