"""Converts a GGUF file to a model directory: configuration, float32 weights, tokenizer and chat template.

The library `gguf` dequantises. Tokenizer and chat template are those that transformers reads from the file's metadata,
so that token ids equal transformers' own.
"""

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from groupwise.core import BadData, MissingRequirement
from groupwise.models.decoder.convert_configurations import config_of, shape_of
from groupwise.models.decoder.decoder import Decoder, DecoderShape
from groupwise.models.decoder.gguf_header import GgufHeader, GgufTensor
from groupwise.models.decoder.rope_scaling import Llama3RopeScaling, parameters_of
from groupwise.models.decoder.transformers_files import quiet
from groupwise.models.json_fields import short
from groupwise.models.safetensors_weights import differences, write_tensors
from groupwise.models.tokenizer import stored_tokenizer

VERSION = 1
"""Increase it with each change of the conversion: it is part of a directory's name in the cache."""
FAMILIES = ("llama", "qwen2", "qwen3")
"""The supported values of `general.architecture`. Files of Mistral models have `llama`."""
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""Fields of config.json and their metadata keys in a GGUF file, without the architecture's name in front."""
UNSUPPORTED = (
    "rope.scaling.type", "rope.scale_linear", "attention.sliding_window", "attention.scale", "attention.clamp_kqv",
    "attention.max_alibi_bias", "logit_scale", "embedding_scale", "residual_scale", "expert_count",
)  # fmt: skip
"""Metadata keys of features that are not converted. The values 0 and `none` disable a feature."""
MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The names of modules in GGUF, and here. In a layer they follow `blk.<index>.` or `model.layers.<index>.`."""
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor with the divisor of each rotary frequency (Llama 3.1 and later). The file lacks its constants."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The constants of Llama 3.1, 3.2 and 3.3. Their `factor` differs; it is the largest divisor."""
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
LONGEST_TOKEN = 1024
"""The most characters of a token. The time to rebuild a tokenizer grows with its square."""
ORIGINAL = "take the directory of the model from which the file was made: it has a config.json and safetensors files"


def gguf_config(path: Path, header: GgufHeader) -> dict[str, Any]:
    """The fields of config.json for the model in a GGUF file. BadData for a model that the decoder does not support."""
    metadata, family = header.metadata, header.metadata.get("general.architecture")
    if family not in FAMILIES:
        what, evidence = f"the family of the model in {path} is not supported", f"general.architecture: {short(family)}"
        fix = f"take a file of {', '.join(FAMILIES)}, or the model's original directory, which transformers can read"
        raise BadData(what, evidence=evidence, fix=fix)
    for key in UNSUPPORTED:
        value = metadata.get(f"{family}.{key}")
        if isinstance(value, np.ndarray) or value not in (None, 0, "none"):
            what = f"the model in {path} has a feature that is not converted"
            raise BadData(what, evidence=f"{family}.{key}: {short(value)}", fix=ORIGINAL)
    fields: dict[str, Any] = {name: metadata.get(f"{family}.{key}") for name, key in FIELDS.items()}
    head_dim = "rope.dimension_count" if family == "llama" else "attention.key_length"
    fields["head_dim"] = metadata.get(f"{family}.{head_dim}")
    embedding = header.tensors.get("token_embd.weight")
    fields |= {"vocab_size": embedding.shape[0] if embedding else None, "model_type": family}
    fields["tie_word_embeddings"] = "output.weight" not in header.tensors
    present = {name: value for name, value in fields.items() if value is not None}
    try:
        shape = shape_of(present)
        config = config_of(shape)
    except KeyError as error:
        raise BadData(f"{path} lacks {error.args[0]}", fix="fetch the file again") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadData(f"{path} does not describe a decoder", evidence=str(error), fix="fetch the file again") from error
    if ROPE_FACTORS in header.tensors:
        config["rope_scaling"] = _llama3_scaling(path, header.tensors[ROPE_FACTORS], shape)
    return config | _token_ids(path, metadata)


def _llama3_scaling(path: Path, tensor: GgufTensor, shape: DecoderShape) -> dict[str, Any]:
    """Recover the rope scaling of Llama 3 from stored divisors. BadData if no `factor` of Llama 3 gives them."""
    evidence = f"{ROPE_FACTORS} has shape {tensor.shape}, expected ({shape.head_dim // 2},)"
    if tensor.shape == (shape.head_dim // 2,):
        stored = torch.from_numpy(dequantised(path, ROPE_FACTORS, tensor).astype(np.float64))
        scaling = Llama3RopeScaling(factor=float(stored.max()), **LLAMA3)
        plain = shape.rope_theta ** -(torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim)
        if torch.allclose(plain / scaling(plain, shape.rope_theta), stored, rtol=1e-4):
            return parameters_of(scaling)
        evidence = f"{ROPE_FACTORS} are not the divisors of Llama 3 with the factor {scaling.factor:g}"
    raise BadData(f"the model in {path} has a rope scaling that is not converted", evidence=evidence, fix=ORIGINAL)


def _token_ids(path: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of the end tokens (of text, turn, message), the padding and the begin token. BadData without an end."""
    values = {key: metadata.get(f"tokenizer.ggml.{key}") for key in (*ENDS, "padding_token_id", "bos_token_id")}
    ids = {key: value for key, value in values.items() if isinstance(value, int)}
    ends = sorted({ids[key] for key in ENDS if key in ids})
    if not ends:
        evidence = "its metadata has no tokenizer.ggml.eos_token_id"
        raise BadData(f"{path} does not say which token ends an answer", evidence=evidence, fix="fetch the file again")
    return {
        "eos_token_id": ends,
        "pad_token_id": ids.get("padding_token_id", ends[0]),
        "bos_token_id": ids.get("bos_token_id"),
    }


def convert(path: Path, header: GgufHeader, config: Mapping[str, Any], directory: Path) -> None:
    """Write the model of a GGUF file into an empty directory. BadData for damaged weights and tokenizers."""
    shape = shape_of(config)
    stored = tensor_names(path, header)
    shapes = {name: header.tensors[source].shape for name, source in stored.items()}
    _check_tensors(path, shape, shapes)
    _write_json(directory / "config.json", {**config, "dtype": "float32", "torch_dtype": "float32"})
    generation = {name: config[name] for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    _write_json(directory / "generation_config.json", generation)

    def weight(name: str) -> np.ndarray:
        values = dequantised(path, stored[name], header.tensors[stored[name]])
        if shape.model_family == "llama" and re.search(r"\.[qk]_proj\.", name):
            values = with_rotary_halves(values, shape.heads if ".q_proj." in name else shape.kv_heads)
        return values

    write_tensors(directory / "model.safetensors", shapes, weight)
    _write_tokenizer(path, header, directory)


def tensor_names(path: Path, header: GgufHeader) -> dict[str, str]:
    """Map the decoder's name of each stored tensor to its name in the file. BadData for an unknown tensor."""
    names: dict[str, str] = {}
    for source in (name for name in header.tensors if name != ROPE_FACTORS):
        match = re.fullmatch(r"(?:blk\.([0-9]+)\.)?(\w+)\.(weight|bias)", source)
        if match is None or match[2] not in MODULES:
            what = f"the model in {path} has a tensor that is not converted"
            raise BadData(what, evidence=short(source), fix=ORIGINAL)
        layer = "" if match[1] is None else f"model.layers.{match[1]}."
        names[f"{layer}{MODULES[match[2]]}.{match[3]}"] = source
    return names


def _check_tensors(path: Path, shape: DecoderShape, stored: Mapping[str, tuple[int, ...]]) -> None:
    """BadData if the stored tensors are not the decoder's. The number of layers is compared before any is built."""
    if shape.layers > len(stored):
        evidence = f"block_count is {shape.layers}, and there are {len(stored)} tensors"
    else:
        evidence = differences({name: tuple(p.shape) for name, p in Decoder(shape).named_parameters()}, stored)
    if evidence:
        what = f"the tensors in {path} are not those that its metadata describe"
        raise BadData(what, evidence=evidence, fix="fetch the file again")


def dequantised(path: Path, name: str, tensor: GgufTensor) -> np.ndarray:
    """A stored tensor as float32. BadData for a type that the library cannot dequantise, and for a truncated file."""
    library = gguf_library()
    try:
        kind = library.GGMLQuantizationType(tensor.ggml_type)
        size = library.quant_shape_to_byte_shape(tensor.shape, kind)
        content = np.memmap(path, np.uint8, "r", tensor.offset, size)
        with np.errstate(all="ignore"):  # `read_model` refuses NaN and infinity
            return library.dequantize(content, kind)
    except NotImplementedError as error:
        raise BadData(f"{path}: {name} cannot be dequantised", evidence=str(error), fix=ORIGINAL) from error
    except (ValueError, OverflowError) as error:
        raise BadData(f"{path}: {name} is damaged", evidence=str(error), fix="fetch the file again") from error


def with_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder a projection's rows for rotary positions of `Decoder`: the first elements of all pairs, then the second.

    llama.cpp stores the rows of each head of a llama model pair by pair.

    >>> with_rotary_halves(np.array([0, 2, 1, 3]), heads=1)
    array([0, 1, 2, 3])
    """
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _write_tokenizer(path: Path, header: GgufHeader, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template. BadData for an unusable vocabulary."""
    gguf_library()
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or max(map(len, tokens), default=0) > LONGEST_TOKEN:
        what, evidence = f"{path} has no usable vocabulary", f"tokenizer.ggml.tokens: {short(tokens)}"
        raise BadData(what, evidence=evidence, fix="fetch the file again")
    from transformers import AutoTokenizer

    try:
        # A link in an empty folder: transformers also reads tokenizer files beside the GGUF file.
        with TemporaryDirectory() as folder, quiet():
            (Path(folder) / "model.gguf").symlink_to(path)
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
            tokenizer.save_pretrained(directory)
        _drop_added_tokens(directory / "tokenizer.json", len(tokens))
        stored_tokenizer(directory)
    except Exception as error:  # transformers and tokenizers raise many types
        evidence = f"{type(error).__name__}: {error}"
        raise BadData(f"the tokenizer of {path} cannot be read", evidence=evidence, fix=ORIGINAL) from error


def _drop_added_tokens(path: Path, size: int) -> None:
    """Remove tokens after the file's last: transformers adds `<|endoftext|>` to a byte-level vocabulary without it."""
    content = json.loads(path.read_text(encoding="utf-8"))
    known = [token for token in content["added_tokens"] if token["id"] < size]
    if known != content["added_tokens"]:
        path.write_text(json.dumps(content | {"added_tokens": known}, ensure_ascii=False), encoding="utf-8")


def gguf_library() -> Any:
    """The library `gguf`. MissingRequirement if it is not installed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        fix = "pip install 'groupwise[gguf]'"
        raise MissingRequirement("a GGUF file needs the package gguf", evidence=str(error), fix=fix) from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
