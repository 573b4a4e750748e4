"""Reads and writes model directories of all kinds. Most have the Hugging Face layout: config.json, safetensors."""

import os
import shutil
from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from groupwise.core import BadData, open_regular
from groupwise.models.decoder.decoder import Decoder, DecoderShape, ModelSizes
from groupwise.models.decoder.layer_weights import LayerWeights
from groupwise.models.flow.flow_policy import FlowPolicy
from groupwise.models.json_fields import short
from groupwise.models.language_files import LanguageModel
from groupwise.models.lora import adapter_quantization, read_adapter
from groupwise.models.masked.masked_policy import MaskedPolicy
from groupwise.models.model_directories import base_directory
from groupwise.models.model_json_files import listing, read_json
from groupwise.models.model_kind import ModelLoadOptions, write_json
from groupwise.models.model_kinds_by_name import KINDS, kind_of
from groupwise.models.quantized_linear import NF4
from groupwise.models.quantized_weights import refuse_quantization, stores_nf4
from groupwise.models.tokenizer import Tokenizer

__all__ = [
    "Model",
    "fingerprint",
    "outline",
    "outline_on_disk",
    "padding_token",
    "read_model",
    "read_shape",
    "read_tokenizer",
    "stored_dtype",
    "stored_quantization",
    "weight_files",
    "write_model",
]

Model = LanguageModel | FlowPolicy | MaskedPolicy
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The fields with special token ids (begin, end, padding), in config.json and in generation_config.json."""
QUANTISED = ("quantization_config", "compression_config")
"""Keys of config.json with the scheme of quantised weights: bitsandbytes, GPTQ, AWQ, FP8, compressed-tensors."""


def read_shape(path: Path | str, *, context: int = 0, trust_remote_code: bool = False) -> ModelSizes:
    """The architecture of the model in a directory: a `DecoderShape` if `Decoder` supports it, else `ModelSizes`.

    `context` is the longest sequence in use, in tokens. `trust_remote_code` executes Python files of a directory that
    ships its own code. BadData for a model that cannot be computed exactly.
    """
    path = base_directory(Path(path))
    if not os.path.isdir(path):
        raise BadData(f"there is no model at {path}", evidence=listing(path), fix="give the path of a model directory")
    kind = kind_of(path)
    config = kind.stored_config(path)
    _refuse(path, config, trust_remote_code)
    try:
        shape = kind.shape(path, config, trust_remote_code=trust_remote_code)
    except KeyError as error:
        raise BadData(f"{path / 'config.json'} lacks {error.args[0]}", fix="fetch the file again") from error
    except (TypeError, ValueError, OverflowError) as error:
        what, fix = f"{path / 'config.json'} does not describe {kind.config_description}", "fetch the file again"
        raise BadData(what, evidence=str(error), fix=fix) from error
    if stores_nf4(config) and not isinstance(shape, DecoderShape):
        raise _quantised(path, config, "quantization_config")
    if context > shape.max_positions:
        raise BadData(
            f"the model in {path} takes at most {shape.max_positions} tokens at once",
            evidence=f"prompt and answer may have {context} tokens",
            fix="lower sampling.max_tokens or drop long prompts",
        )
    return shape


def read_model(
    path: Path | str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    context: int = 0,
    seed: int = 0,
    trust_remote_code: bool = False,
    quantization: Literal["nf4"] | None = None,
) -> Model:
    """Load the model in a directory: as a `Decoder` if that is exact, else as the modules of transformers.

    For an adapter's directory: its base with the adapter attached, which alone is trained. A fresh model has weights
    drawn from `seed`. With `quantization`, or as the directory stores it, the linear layers but the head are frozen, in
    4 bits. BadData names every difference between the files and config.json; Usage for a model that is not quantised.
    """
    directory = Path(path)
    path = base_directory(directory)
    shape = read_shape(path, context=context, trust_remote_code=trust_remote_code)
    quantization = quantization or stored_quantization(directory)
    if quantization:
        refuse_quantization(path, shape)
    loading = ModelLoadOptions(
        dtype=dtype,
        device=device,
        fresh_weights_seed=seed,
        trust_remote_code=trust_remote_code,
        quantization=quantization,
    )
    model: Model = KINDS[shape.kind_name].read(path, shape, loading)
    if directory != path:
        read_adapter(model, directory, base_sha256=fingerprint(path))
    return model


def outline(path: Path | str, *, trust_remote_code: bool = False) -> nn.Module:
    """Create the modules of a model without loading its weights, to inspect their names and shapes."""
    shape = read_shape(path, trust_remote_code=trust_remote_code)
    return KINDS[shape.kind_name].outline(base_directory(Path(path)), shape, trust_remote_code=trust_remote_code)


def outline_on_disk(path: Path | str, *, dtype: torch.dtype, device: torch.device) -> Decoder | None:
    """The modules of a `Decoder` in a directory, without weights: sharded ranks read their rows from its files.

    An adapter's matrices are read whole. None for another model, whose weights are read whole, and for an adapter on a
    base in 4 bits. BadData as for `read_model`.
    """
    directory, path = Path(path), base_directory(Path(path))
    if directory != path and stored_quantization(directory):
        return None
    shape = read_shape(path)
    outlined = KINDS[shape.kind_name].outline_on_disk(path, shape, dtype, device)
    if outlined is not None and directory != path:
        read_adapter(outlined, directory, base_sha256=fingerprint(path))
    return outlined


def stored_quantization(path: Path | str) -> Literal["nf4"] | None:
    """The quantisation of a model directory's weights, or of the base that an adapter was trained on; else None."""
    path = Path(path)
    base = base_directory(path)
    if stores_nf4(kind_of(base).stored_config(base)):
        return NF4
    return adapter_quantization(path) if path != base else None


def weight_files(path: Path | str) -> list[Path]:
    """The files with the weights of a model, or of an adapter's base; none for a fresh model.

    BadData if one is missing.
    """
    path = base_directory(Path(path))
    return kind_of(path).weight_files(path)


def fingerprint(path: Path | str) -> str:
    """SHA-256 over the weight files of a directory."""
    whole = sha256()
    for file in weight_files(path):
        with open_regular(file) as content:
            whole.update(file_digest(content, "sha256").digest())
    return whole.hexdigest()


def read_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a model directory, with all end tokens. BadData if it is missing or does not fit the model."""
    path = base_directory(Path(path))
    return kind_of(path).tokenizer(path)


def write_model(
    model: Model,
    path: Path | str,
    *,
    tokenizer: Tokenizer,
    source: Path | str | None = None,
    weights: LayerWeights | None = None,
) -> None:
    """Write a directory for transformers, vLLM and `read_model`. ValueError if the family excludes the `DecoderShape`.

    `source` is the directory that the model was read from: its begin, end and padding ids and its
    `generation_config.json` are kept. `weights` are those of a decoder on the meta device, written one after the other.
    """
    path = Path(path)
    kind = KINDS[model.shape.kind_name]
    config = kind.config(model)
    generation = _special_ids(None if source is None else base_directory(Path(source)), tokenizer.eos_ids)
    ids = {name: id for name, id in generation.items() if name in IDS}
    tokenizer.save(path)
    if weights is None:
        kind.write(model, path, config | ids)
    else:
        kind.write_layers(model, path, config | ids, weights)
    write_json(path / "generation_config.json", generation)
    for file in path.glob("*.safetensors"):
        shutil.copymode(path / "config.json", file)  # safetensors creates files for their owner alone


def padding_token(path: Path | str) -> int:
    """The padding token of the models that are written with this directory as their `source`."""
    path = base_directory(Path(path))
    ends = read_tokenizer(path).eos_ids
    return _special_ids(path, ends)["pad_token_id"]


def _special_ids(path: Path | None, ends: frozenset[int]) -> dict[str, Any]:
    """The fields of generation_config.json for a model with these end tokens: those in a directory, else the usual."""
    stored = {} if path is None else _generation(path, ends)
    return {"eos_token_id": sorted(ends), "pad_token_id": min(ends), **stored}


def _generation(path: Path, eos: frozenset[int]) -> dict[str, Any]:
    """The begin, end and padding ids in config.json, updated with all fields of generation_config.json.

    The end tokens are left out unless they are `eos`.
    """
    config, file = read_json(path / "config.json"), path / "generation_config.json"
    stored = {name: config[name] for name in IDS if config.get(name) is not None}
    stored |= read_json(file) if file.is_file() else {}
    ends = stored.get("eos_token_id")
    if set(ends if isinstance(ends, list) else [ends]) != eos:
        stored.pop("eos_token_id", None)
    return stored


def _refuse(path: Path, config: Mapping[str, Any], trust_remote_code: bool) -> None:
    """BadData for quantised weights, code of another repository, and own code without `trust_remote_code`."""
    if config.get("auto_map") and not trust_remote_code:
        raise BadData(
            f"the model in {path} brings its own code",
            evidence=f"auto_map in config.json: {short(config['auto_map'])}",
            fix="if you trust it, add --trust-remote-code: Python of that directory is then executed, with your "
            "rights\nif transformers supports this model_type, remove auto_map instead",
        )
    if "--" in str(config.get("auto_map")):
        raise BadData(
            f"the model in {path} has its code in another repository",
            evidence=f"auto_map in config.json: {short(config['auto_map'])}",
            fix="copy the Python files into the directory and remove the prefixes that end in --: no other code is "
            "executed",
        )
    for key in QUANTISED:
        if config.get(key) is not None and not stores_nf4(config):
            raise _quantised(path, config, key)


def _quantised(path: Path, config: Mapping[str, Any], key: str) -> BadData:
    fix = "take the model that it was quantised from, and let the run quantise it: --machine.quantization nf4 "
    return BadData(
        f"the model in {path} is quantised: only NF4 of bitsandbytes is read, for Qwen2, Qwen3, Llama and Mistral",
        evidence=f"{key}: {short(config[key])}",
        fix=f"{fix}--lora.rank 16",
    )


def stored_dtype(path: Path | str) -> torch.dtype:
    """The dtype of the weights according to config.json; float32 if it names none or an unsupported one."""
    path = base_directory(Path(path))
    config = kind_of(path).stored_config(path)
    return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)
