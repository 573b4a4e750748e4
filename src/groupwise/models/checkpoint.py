"""Decoders in the Hugging Face layout: config.json, generation_config.json, model.safetensors."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from groupwise.data import BadData, visible
from groupwise.models.decoder import Decoder, Shape, Sizes
from groupwise.models.families import beyond, config_of, shape_of
from groupwise.models.fields import short
from groupwise.models.files import base_directory, listing, read_json
from groupwise.models.lora import read_adapter
from groupwise.models.tokenizer import Tokenizer
from groupwise.models.transformers_files import (
    read_transformers,
    transformers_outline,
    transformers_sizes,
    write_transformers,
)
from groupwise.models.transformers_model import TransformersModel
from groupwise.models.weights import FRESH, Stored, fingerprint, header, refuse_types, tensors, weight_files

__all__ = ["Model", "outline", "read_model", "read_shape", "stored_dtype", "write_fresh", "write_model"]

Model = Decoder | TransformersModel
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
HEAD = "lm_head.weight"


def read_shape(path: Path | str, *, context: int = 0, trust_remote_code: bool = False) -> Sizes:
    """The shape of the model in a directory, from config.json alone: a `Shape` where the decoder is native.

    `context` is the most tokens that will be used at once; `trust_remote_code` executes Python of a directory that
    brings its own. BadData for a model that cannot be used exactly.
    """
    path = base_directory(Path(path))
    if not os.path.isdir(path):
        raise BadData(f"there is no model at {path}", evidence=listing(path), fix="give the path of a model directory")
    config = read_json(path / "config.json")
    _refuse(path, config, trust_remote_code)
    try:
        if config.get("auto_map") or beyond(config):
            shape: Sizes = transformers_sizes(path, trust_remote_code=trust_remote_code)
        else:
            shape = shape_of(config)
    except KeyError as error:
        raise BadData(f"{path / 'config.json'} lacks {error.args[0]}", fix="fetch the file again") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadData(
            f"{path / 'config.json'} describes no decoder", evidence=str(error), fix="fetch the file again"
        ) from error
    if context > shape.positions:
        raise BadData(
            f"the model in {path} sees at most {shape.positions} tokens at once",
            evidence=f"prompt and answer may have {context}",
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
) -> Model:
    """The model in a directory: our decoder where it computes it exactly, else transformers' own modules.

    Of an adapter, its base with the adapter beside it, which alone is trained. A fresh one has weights drawn from
    `seed`. BadData, naming what is wrong, for whatever is not exactly what its config.json describes.
    """
    given = Path(path)
    path = base_directory(given)
    shape = read_shape(path, context=context, trust_remote_code=trust_remote_code)
    if isinstance(shape, Shape):
        model: Model = _read_decoder(path, shape, dtype, device, seed)
    else:
        if not weight_files(path):
            what, fix = f"the model in {path} is fresh, and not a native one", "describe a Llama, Mistral or Qwen"
            raise BadData(what, evidence=beyond(read_json(path / "config.json")), fix=fix)
        model = read_transformers(path, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    if given != path:
        read_adapter(model, given, base_sha256=fingerprint(path))
    return model


def outline(path: Path | str, *, trust_remote_code: bool = False) -> nn.Module:
    """The layers of the model in a directory by their names, without weights."""
    shape = read_shape(path, trust_remote_code=trust_remote_code)
    if isinstance(shape, Shape):
        return Decoder(shape)
    return transformers_outline(base_directory(Path(path)), trust_remote_code=trust_remote_code)


def _read_decoder(path: Path, shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int) -> Decoder:
    if not weight_files(path):
        return Decoder.new(shape, seed, dtype=dtype, device=device)
    files = {file: _described(file) for file in weight_files(path)}
    stored = {name: x for described in files.values() for name, x in described.items()}
    if shape.layers > len(stored):
        raise _differs(path, f"num_hidden_layers is {shape.layers}, and there are {len(stored)} tensors")
    decoder = Decoder(shape)
    if shape.tied:
        stored.pop(HEAD, None)
    _compare(path, {name: tuple(p.shape) for name, p in decoder.named_parameters()}, stored)
    weights: dict[str, Tensor] = {}
    for file, described in files.items():
        refuse_types(file, described)
        weights |= tensors(file, described, lambda tensor: tensor.to(device, dtype))
    if shape.tied:
        _drop_tied_head(path, weights)
    decoder.load_state_dict(weights, assign=True)
    return decoder.requires_grad_(True)


def _described(file: Path) -> dict[str, Stored]:
    """The header of a file, without frequencies: they follow from the configuration."""
    return {name: x for name, x in header(file).items() if not name.endswith("rotary_emb.inv_freq")}


def write_fresh(shape: Shape, path: Path, *, tokenizer: Tokenizer) -> None:
    """Write a directory of a model without weights."""
    ends = sorted(tokenizer.eos)
    tokenizer.save(path)
    _write_json(path / "config.json", config_of(shape) | {"eos_token_id": ends, "pad_token_id": ends[0], FRESH: True})


def write_model(model: Model, path: Path | str, *, tokenizer: Tokenizer) -> None:
    """Write a directory that transformers, vLLM and `read_model` load. ValueError for a shape that no family has."""
    path, ends = Path(path), sorted(tokenizer.eos)
    config = config_of(model.shape) if isinstance(model, Decoder) else {}
    generation = {"eos_token_id": ends, "pad_token_id": ends[0]}
    tokenizer.save(path)
    if isinstance(model, TransformersModel):
        write_transformers(model, path)
    else:
        weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        _write_json(path / "config.json", config | generation | {"dtype": dtype, "torch_dtype": dtype})
    _write_json(path / "generation_config.json", generation)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _refuse(path: Path, config: Mapping[str, Any], trust_remote_code: bool) -> None:
    """BadData for code of the directory's own that nobody trusts, and for what no path computes: quantised weights."""
    if config.get("auto_map") and not trust_remote_code:
        raise BadData(
            f"the model in {path} brings its own code",
            evidence=f"auto_map in config.json: {short(config['auto_map'])}",
            fix="if you trust it, say --trust-remote-code: Python of that directory is then executed, with your own "
            "rights\nif transformers has this model_type itself, remove auto_map instead",
        )
    if "--" in str(config.get("auto_map")):
        raise BadData(
            f"the model in {path} has its code elsewhere",
            evidence=f"auto_map in config.json: {short(config['auto_map'])}",
            fix="bring the Python files into the directory and take what ends in -- out: no other code is executed",
        )
    if config.get("quantization_config") is not None:
        raise BadData(
            f"the model in {path} is quantised",
            evidence=f"quantization_config: {short(config['quantization_config'])}",
            fix="take the model that it was quantised from: quantised weights cannot be trained",
        )


def stored_dtype(path: Path | str) -> torch.dtype:
    """The dtype that a directory's weights are said to have; float32 where nothing is said."""
    config = read_json(base_directory(Path(path)) / "config.json")
    return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)


def _drop_tied_head(path: Path, weights: dict[str, Tensor]) -> None:
    """A tied head may be stored, if it is the embedding."""
    head, embedding = weights.pop(HEAD, None), weights.get("model.embed_tokens.weight")
    if head is not None and (embedding is None or not torch.equal(head, embedding)):
        raise BadData(
            f"the head in {path} is not the embedding, but config.json ties them",
            evidence="tie_word_embeddings is true and lm_head.weight differs from model.embed_tokens.weight",
            fix="set tie_word_embeddings to false",
        )


def _compare(path: Path, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    """BadData that names every kind of difference between what config.json promises and what is stored."""
    misshapen = [n for n in shapes if n in stored and stored[n].shape != shapes[n]]
    kinds = {
        "missing": [n for n in shapes if n not in stored],
        "superfluous": [visible(n) for n in stored if n not in shapes],
        "misshapen": [f"{n} {stored[n].shape}, expected {shapes[n]}" for n in misshapen],
    }
    lines = [f"{k} ({len(v)}): " + ", ".join(v[:4]) + (", ..." if len(v) > 4 else "") for k, v in kinds.items() if v]
    if lines:
        raise _differs(path, "\n".join(lines))


def _differs(path: Path, evidence: str) -> BadData:
    return BadData(
        f"the tensors in {path} are not those that its config.json describes",
        evidence=evidence,
        fix="fetch the directory again; adapters and quantised weights are merged before they are used here",
    )
