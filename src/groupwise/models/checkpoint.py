"""Read and write model directories in the Hugging Face layout: config.json, model.safetensors and others."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from groupwise.core import BadData, Usage, visible
from groupwise.models.decoder.architectures import config_of, shape_of, unsupported
from groupwise.models.decoder.decoder import Decoder, Shape, Sizes
from groupwise.models.decoder.transformers_files import (
    read_transformers,
    transformers_outline,
    transformers_sizes,
    write_transformers,
)
from groupwise.models.decoder.transformers_model import TransformersModel
from groupwise.models.diffusion.files import pipeline_outline, read_pipeline
from groupwise.models.diffusion.index import is_pipeline, pipeline_shape
from groupwise.models.diffusion.shape import PipelineShape
from groupwise.models.flow.flow_files import flow_config, flow_shape, is_flow, read_flow
from groupwise.models.flow.policy import FlowPolicy
from groupwise.models.flow.velocity import FlowShape
from groupwise.models.json_fields import short
from groupwise.models.lora import read_adapter
from groupwise.models.masked.masked_files import is_masked, masked_config, masked_shape, read_masked
from groupwise.models.masked.policy import MaskedPolicy
from groupwise.models.masked.predictor import MaskedShape
from groupwise.models.model_files import base_directory, listing, read_json
from groupwise.models.tokenizer import Tokenizer
from groupwise.models.weights import FRESH, Stored, fingerprint, header, refuse_types, tensors, weight_files

__all__ = [
    "LanguageModel",
    "Model",
    "outline",
    "read_model",
    "read_shape",
    "stored_dtype",
    "write_fresh",
    "write_model",
]

LanguageModel = Decoder | TransformersModel
Model = LanguageModel | FlowPolicy | MaskedPolicy
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}
HEAD = "lm_head.weight"
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""The fields with special token ids (begin, end, padding), in config.json and in generation_config.json."""
QUANTISED = ("quantization_config", "compression_config")
"""Keys of config.json with the scheme of quantised weights: bitsandbytes, GPTQ, AWQ, FP8, compressed-tensors."""


def read_shape(path: Path | str, *, context: int = 0, trust_remote_code: bool = False) -> Sizes:
    """The architecture of the model in a directory, from config.json: a `Shape` if `Decoder` supports it, else `Sizes`.

    `context` is the longest sequence in use, in tokens. `trust_remote_code` executes Python files of a directory that
    ships its own code. BadData for a model that cannot be computed exactly.
    """
    path = base_directory(Path(path))
    if not os.path.isdir(path):
        raise BadData(f"there is no model at {path}", evidence=listing(path), fix="give the path of a model directory")
    if is_pipeline(path):
        return pipeline_shape(path)
    config = read_json(path / "config.json")
    _refuse(path, config, trust_remote_code)
    try:
        if is_flow(config):
            shape: Sizes = flow_shape(config)
        elif is_masked(config):
            shape = masked_shape(config)
        elif config.get("auto_map") or unsupported(config):
            shape = transformers_sizes(path, trust_remote_code=trust_remote_code)
        else:
            shape = shape_of(config)
    except KeyError as error:
        raise BadData(f"{path / 'config.json'} lacks {error.args[0]}", fix="fetch the file again") from error
    except (TypeError, ValueError, OverflowError) as error:
        kind = "a flow model" if is_flow(config) else "a masked model" if is_masked(config) else "a decoder"
        what, fix = f"{path / 'config.json'} does not describe {kind}", "fetch the file again"
        raise BadData(what, evidence=str(error), fix=fix) from error
    if context > shape.positions:
        raise BadData(
            f"the model in {path} takes at most {shape.positions} tokens at once",
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
) -> Model:
    """Load the model in a directory: as a `Decoder` if that is exact, else as the modules of transformers.

    For an adapter's directory: its base with the adapter attached, which alone is trained. A fresh model has weights
    drawn from `seed`. BadData names every difference between the files and config.json.
    """
    directory = Path(path)
    path = base_directory(directory)
    shape = read_shape(path, context=context, trust_remote_code=trust_remote_code)
    if isinstance(shape, Shape):
        model: Model = _read_decoder(path, shape, dtype, device, seed)
    elif isinstance(shape, PipelineShape):
        model = read_pipeline(path, dtype=dtype, device=device)
    elif isinstance(shape, FlowShape):
        return read_flow(path, shape, dtype=dtype, device=device)
    elif isinstance(shape, MaskedShape):
        return read_masked(path, read_json(path / "config.json"), shape, dtype=dtype, device=device)
    else:
        if not weight_files(path):
            what = f"the model in {path} has no weights, and random weights are not possible for its config.json"
            evidence, fix = unsupported(read_json(path / "config.json")), "describe a Llama, Mistral or Qwen model"
            raise BadData(what, evidence=evidence, fix=fix)
        model = read_transformers(path, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    if directory != path:
        read_adapter(model, directory, base_sha256=fingerprint(path))
    return model


def outline(path: Path | str, *, trust_remote_code: bool = False) -> nn.Module:
    """Create the modules of a model without loading its weights, to inspect their names and shapes."""
    shape = read_shape(path, trust_remote_code=trust_remote_code)
    if isinstance(shape, Shape):
        return Decoder(shape)
    if isinstance(shape, PipelineShape):
        return pipeline_outline(base_directory(Path(path)))
    if isinstance(shape, FlowShape):
        return FlowPolicy(shape)
    if isinstance(shape, MaskedShape):
        return MaskedPolicy(shape)
    return transformers_outline(base_directory(Path(path)), trust_remote_code=trust_remote_code)


def _read_decoder(path: Path, shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int) -> Decoder:
    if not weight_files(path):
        return Decoder.new(shape, seed, dtype=dtype, device=device)
    files = {file: _headers(file) for file in weight_files(path)}
    stored = {name: x for headers in files.values() for name, x in headers.items()}
    if shape.layers > len(stored):
        raise _differs(path, f"num_hidden_layers is {shape.layers}, and there are {len(stored)} tensors")
    decoder = Decoder(shape)
    if shape.tied:
        stored.pop(HEAD, None)
    shapes = {name: tuple(p.shape) for name, p in decoder.named_parameters()}
    if evidence := differences(shapes, {name: x.shape for name, x in stored.items()}):
        raise _differs(path, evidence)
    weights: dict[str, Tensor] = {}
    for file, headers in files.items():
        refuse_types(file, headers)
        weights |= tensors(file, headers, lambda tensor: tensor.to(device, dtype))
    if shape.tied:
        _drop_tied_head(path, weights)
    decoder.load_state_dict(weights, assign=True)
    return decoder.requires_grad_(True)


def _headers(file: Path) -> dict[str, Stored]:
    """The types and shapes of a file's tensors, except stored rotary frequencies, which are computed instead."""
    return {name: x for name, x in header(file).items() if not name.endswith("rotary_emb.inv_freq")}


def write_fresh(shape: Shape, path: Path, *, tokenizer: Tokenizer) -> None:
    """Write a directory for a model with random weights: configuration and tokenizer, no weights."""
    ends = sorted(tokenizer.eos)
    tokenizer.save(path)
    _write_json(path / "config.json", config_of(shape) | {"eos_token_id": ends, "pad_token_id": ends[0], FRESH: True})


def write_model(model: Model, path: Path | str, *, tokenizer: Tokenizer, source: Path | str | None = None) -> None:
    """Write a directory for transformers, vLLM and `read_model`. ValueError if the model family excludes the `Shape`.

    `source` is the directory that the model was read from: its begin, end and padding ids and its
    `generation_config.json` are kept.
    """
    path, ends = Path(path), sorted(tokenizer.eos)
    config = config_of(model.shape) if isinstance(model, Decoder) else {}
    if isinstance(model.shape, PipelineShape):
        fix = "keep the adapter beside the pipeline; to merge them: load_lora_weights, fuse_lora, save_pretrained"
        raise Usage("a pipeline is not written here: diffusers merges and writes it", fix=fix)
    if isinstance(model, FlowPolicy):
        config = flow_config(model.shape)
    if isinstance(model, MaskedPolicy):
        config = masked_config(model)
    stored = {} if source is None else _generation(base_directory(Path(source)), tokenizer.eos)
    generation = {"eos_token_id": ends, "pad_token_id": ends[0], **stored}
    ids = {name: id for name, id in generation.items() if name in IDS}
    tokenizer.save(path)
    if isinstance(model, TransformersModel):
        write_transformers(model, path)
    else:
        weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        _write_json(path / "config.json", config | ids | {"dtype": dtype, "torch_dtype": dtype})
    _write_json(path / "generation_config.json", generation)
    for file in path.glob("*.safetensors"):
        shutil.copymode(path / "config.json", file)  # safetensors creates files for their owner alone


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


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


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
        if config.get(key) is not None:
            raise BadData(
                f"the model in {path} is quantised: quantised weights cannot be trained, and take no adapter",
                evidence=f"{key}: {short(config[key])}",
                fix="take the model that it was quantised from; an adapter on it needs the least memory: "
                "--lora.rank 16 --machine.dtype bfloat16",
            )


def stored_dtype(path: Path | str) -> torch.dtype:
    """The dtype of the weights according to config.json; float32 if it names none or an unsupported one."""
    if is_pipeline(base_directory(Path(path))):
        return torch.float32
    config = read_json(base_directory(Path(path)) / "config.json")
    return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")), torch.float32)


def _drop_tied_head(path: Path, weights: dict[str, Tensor]) -> None:
    """Drop a stored output head that equals the embedding. BadData for a different one, since config.json ties them."""
    head, embedding = weights.pop(HEAD, None), weights.get("model.embed_tokens.weight")
    if head is not None and (embedding is None or not torch.equal(head, embedding)):
        raise BadData(
            f"the output head in {path} differs from the embedding, but config.json ties them",
            evidence="tie_word_embeddings is true and lm_head.weight differs from model.embed_tokens.weight",
            fix="set tie_word_embeddings to false",
        )


def differences(shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]) -> str:
    """How stored tensors differ from the expected ones (missing, unexpected, other shape), as text; empty if equal."""
    misshapen = [n for n in shapes if n in stored and stored[n] != shapes[n]]
    kinds = {
        "missing": [n for n in shapes if n not in stored],
        "superfluous": [visible(n) for n in stored if n not in shapes],
        "misshapen": [f"{n} {stored[n]}, expected {shapes[n]}" for n in misshapen],
    }
    lines = [f"{k} ({len(v)}): " + ", ".join(v[:4]) + (", ..." if len(v) > 4 else "") for k, v in kinds.items() if v]
    return "\n".join(lines)


def _differs(path: Path, evidence: str) -> BadData:
    return BadData(
        f"the tensors in {path} are not those that its config.json describes",
        evidence=evidence,
        fix="fetch the directory again; merge an adapter into its base; take weights that are not quantised",
    )
