"""Reads and writes the directory of a reward model that is trained here: a sequence classifier of transformers."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from groupwise.models.classifier.sequence_classifier import ClassifierShape, SequenceClassifier
from groupwise.models.decoder.convert_configurations import config_of, shape_of, unsupported
from groupwise.models.decoder.layer_weights import LayerWeights
from groupwise.models.decoder.weights_on_disk import RowsOnDisk, WeightsOnDisk
from groupwise.models.json_fields import short, whole
from groupwise.models.lora import has_adapter, merged_weights
from groupwise.models.model_kind import ModelKind, ModelLoadOptions
from groupwise.models.safetensors_weights import exact_files, load_exactly

LANGUAGE, CLASSIFIER = "ForCausalLM", "ForSequenceClassification"
"""The ends of the names of a family's classes in transformers."""
ONE_LABEL: Mapping[str, Any] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
"""The fields of config.json for one label."""
VOCABULARY = 1 << 24
"""The largest id of a token."""
WITHOUT_WEIGHTS = "reward model", "name a trained reward model, or a language model"
"""The kind and the advice in the error for a directory without weights."""


class ClassifierKind(ModelKind):
    """Sequence classifiers with one label over the decoders of this package: Qwen2, Qwen3, Llama and Mistral."""

    name = ClassifierShape.kind_name
    config_description = "a reward model that can be trained here"

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        architectures = config.get("architectures")
        return isinstance(architectures, list) and any(str(name).endswith(CLASSIFIER) for name in architectures)

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> ClassifierShape:
        (architecture, *others), labels = config["architectures"], config.get("id2label")
        language = str(architecture).removesuffix(CLASSIFIER) + LANGUAGE
        if others:
            raise ValueError(f"architectures is {short(config['architectures'])}: a model has one")
        if reason := unsupported({**config, "architectures": [language]}):
            raise ValueError(reason)
        if not isinstance(labels, dict) or len(labels) != 1:
            raise ValueError(f"id2label is {short(labels)}: a reward model has one label")
        pad = None if config.get("pad_token_id") is None else whole(config, "pad_token_id", low=0, high=VOCABULARY)
        return ClassifierShape.of(shape_of(config), pad)

    def read(self, path: Path, shape: ClassifierShape, loading: ModelLoadOptions) -> SequenceClassifier:
        model = SequenceClassifier(shape)
        load_exactly(model, path, loading.convert, *WITHOUT_WEIGHTS)
        return model.requires_grad_(True)

    def outline(self, path: Path, shape: ClassifierShape, *, trust_remote_code: bool) -> SequenceClassifier:
        return SequenceClassifier(shape)

    def outline_on_disk(
        self, path: Path, shape: ClassifierShape, dtype: torch.dtype, device: torch.device
    ) -> SequenceClassifier:
        model = SequenceClassifier(shape)
        files = exact_files(model, path, *WITHOUT_WEIGHTS)
        stored = {name: RowsOnDisk(file, name, dtype) for file, names in files.items() for name in names}
        model.on_disk = WeightsOnDisk(stored, device)
        return model.to(dtype)

    def config(self, model: SequenceClassifier) -> dict[str, Any]:
        config = config_of(model.shape)
        architectures = [name.removesuffix(LANGUAGE) + CLASSIFIER for name in config["architectures"]]
        return {**config, **ONE_LABEL, "architectures": architectures}

    def write(self, model: SequenceClassifier, path: Path, config: Mapping[str, Any]) -> None:
        """Write the plain classifier: an adapter is added to its layers."""
        super().write(model.without_adapter(), path, {**config, "pad_token_id": model.shape.pad_token})

    def write_layers(
        self, model: SequenceClassifier, path: Path, config: Mapping[str, Any], weights: LayerWeights
    ) -> None:
        plain = weights.converted(partial(merged_weights, model)) if has_adapter(model) else weights
        super().write_layers(model, path, {**config, "pad_token_id": model.shape.pad_token}, plain)
