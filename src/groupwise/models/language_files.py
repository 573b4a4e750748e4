"""Reads and writes the directory of a language model: as a `Decoder` if that is exact, else by transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core import BadData
from groupwise.models.decoder.convert_configurations import config_of, shape_of, unsupported
from groupwise.models.decoder.decoder import Decoder, DecoderShape, ModelSizes
from groupwise.models.decoder.transformers_files import (
    read_transformers,
    transformers_outline,
    transformers_sizes,
    write_transformers,
)
from groupwise.models.decoder.transformers_model import TransformersBackbone
from groupwise.models.decoder.weights_on_disk import RowsOnDisk, WeightsOnDisk
from groupwise.models.model_json_files import read_json
from groupwise.models.model_kind import ModelKind, ModelLoadOptions, write_json
from groupwise.models.quantized_weights import linear_shapes, matrix_of, quantize_layers, stores_nf4, without_parts
from groupwise.models.safetensors_weights import (
    FRESH,
    TensorHeader,
    differences,
    header,
    refuse_types,
    stored_weights,
    tensors,
)
from groupwise.models.tokenizer import Tokenizer

__all__ = ["LanguageModel", "write_fresh"]

LanguageModel = Decoder | TransformersBackbone
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
AT_ONCE = 1 << 12
"""The rows of embedding and head that are compared at a time."""


class LanguageKind(ModelKind):
    """Language models. A `DecoderShape` is read as a `Decoder`, other sizes as the modules of transformers."""

    name = ModelSizes.kind_name
    config_description = "a decoder"

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return True

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> ModelSizes:
        if config.get("auto_map") or unsupported(config):
            return transformers_sizes(path, trust_remote_code=trust_remote_code)
        return shape_of(config)

    def read(self, path: Path, shape: ModelSizes, loading: ModelLoadOptions) -> LanguageModel:
        if isinstance(shape, DecoderShape):
            return _read_decoder(path, shape, loading)
        if not stored_weights(path):
            what = f"the model in {path} has no weights, and random weights are not possible for its config.json"
            evidence, fix = unsupported(read_json(path / "config.json")), "describe a Llama, Mistral or Qwen model"
            raise BadData(what, evidence=evidence, fix=fix)
        trusted = loading.trust_remote_code
        return read_transformers(path, dtype=loading.dtype, device=loading.device, trust_remote_code=trusted)

    def outline(self, path: Path, shape: ModelSizes, *, trust_remote_code: bool) -> nn.Module:
        if isinstance(shape, DecoderShape):
            return Decoder(shape)
        return transformers_outline(path, trust_remote_code=trust_remote_code)

    def outline_on_disk(
        self, path: Path, shape: ModelSizes, dtype: torch.dtype, device: torch.device
    ) -> Decoder | None:
        return decoder_on_disk(path, shape, dtype, device) if isinstance(shape, DecoderShape) else None

    def config(self, model: LanguageModel) -> dict[str, Any]:
        return config_of(model.shape) if isinstance(model, Decoder) else {}

    def write(self, model: LanguageModel, path: Path, config: Mapping[str, Any]) -> None:
        if isinstance(model, TransformersBackbone):
            write_transformers(model, path)
        else:
            super().write(model, path, config)


def _read_decoder(path: Path, shape: DecoderShape, loading: ModelLoadOptions) -> Decoder:
    if not stored_weights(path):
        return Decoder.new(shape, loading.fresh_weights_seed, dtype=loading.dtype, device=loading.device)
    decoder, files = _checked_files(path, shape)
    packed = quantize_layers(path, decoder, files, loading)
    weights: dict[str, Tensor] = {}
    for file, headers in files.items():
        floats = {name: x for name, x in headers.items() if matrix_of(name) not in packed}
        refuse_types(file, floats)
        weights |= tensors(file, floats, loading.convert)
    if shape.tied_embeddings:
        _drop_tied_head(path, weights)
    decoder.load_state_dict(weights, strict=not packed, assign=True)
    return decoder.requires_grad_(not packed)


def decoder_on_disk(path: Path, shape: DecoderShape, dtype: torch.dtype, device: torch.device) -> Decoder:
    """The decoder in a directory on the meta device, with its weights `on_disk` unless they are fresh or in 4 bits.

    BadData as for `read_model`, but NaN and infinity are found when rows are read.
    """
    if not stored_weights(path) or stores_nf4(read_json(path / "config.json")):
        return Decoder(shape).to(dtype)
    decoder, files = _checked_files(path, shape)
    tensors: dict[str, RowsOnDisk] = {}
    for file, headers in files.items():
        refuse_types(file, headers)
        tensors |= {name: RowsOnDisk(file, name, dtype) for name in headers}
    if shape.tied_embeddings and (head := tensors.pop(HEAD, None)):
        for first in range(0, shape.vocabulary_size, AT_ONCE):
            count = min(AT_ONCE, shape.vocabulary_size - first)
            _drop_tied_head(path, {HEAD: head.rows(first, count), EMBEDDING: tensors[EMBEDDING].rows(first, count)})
    decoder.on_disk = WeightsOnDisk(tensors, device)
    return decoder.to(dtype)


def _checked_files(path: Path, shape: DecoderShape) -> tuple[Decoder, dict[Path, dict[str, TensorHeader]]]:
    """The decoder of a directory without its weights, and the headers of its files. BadData if they do not fit."""
    files = {file: _headers(file) for file in stored_weights(path)}
    stored = {name: x for headers in files.values() for name, x in headers.items()}
    if shape.layers > len(stored):
        raise _differs(path, f"num_hidden_layers is {shape.layers}, and there are {len(stored)} tensors")
    decoder = Decoder(shape)
    if shape.tied_embeddings:
        stored.pop(HEAD, None)
    shapes = {name: tuple(p.shape) for name, p in decoder.named_parameters()}
    plain = without_parts(path, stored, linear_shapes(decoder))
    if evidence := differences(shapes, {name: x.shape for name, x in plain.items()}):
        raise _differs(path, evidence)
    return decoder, files


def _headers(file: Path) -> dict[str, TensorHeader]:
    """The types and shapes of a file's tensors, except stored rotary frequencies, which are computed instead."""
    return {name: x for name, x in header(file).items() if not name.endswith("rotary_emb.inv_freq")}


def write_fresh(shape: DecoderShape, path: Path, *, tokenizer: Tokenizer) -> None:
    """Write a directory for a model with random weights: configuration and tokenizer, no weights."""
    ends = sorted(tokenizer.eos_ids)
    tokenizer.save(path)
    write_json(path / "config.json", config_of(shape) | {"eos_token_id": ends, "pad_token_id": ends[0], FRESH: True})


def _drop_tied_head(path: Path, weights: dict[str, Tensor]) -> None:
    """Drop a stored output head that equals the embedding. BadData for a different one, since config.json ties them."""
    head, embedding = weights.pop(HEAD, None), weights.get(EMBEDDING)
    if head is not None and (embedding is None or not torch.equal(head, embedding)):
        raise BadData(
            f"the output head in {path} differs from the embedding, but config.json ties them",
            evidence="tie_word_embeddings is true and lm_head.weight differs from model.embed_tokens.weight",
            fix="set tie_word_embeddings to false",
        )


def _differs(path: Path, evidence: str) -> BadData:
    return BadData(
        f"the tensors in {path} are not those that its config.json describes",
        evidence=evidence,
        fix="fetch the directory again; merge an adapter into its base; take weights that are not quantised",
    )
