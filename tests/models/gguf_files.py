"""Small GGUF files for tests."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groupwise.models import Decoder, Tokenizer
from groupwise.models.decoder.convert_gguf import FIELDS, MODULES
from tests.models.directories import bytes_, shape

TEMPLATE = "{% for m in messages %}<|im_end|>{{ m.role }}: {{ m.content }}{% endfor %}"
SIZE = 300
ENDS = {"<|end|>": "eos_token_id", "<|im_end|>": "eot_token_id"}


def decoder(family: str) -> Decoder:
    """A random model. transformers assumes 128 elements a head for every GGUF file of Qwen3."""
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 128} if family == "qwen3" else {"head_dim": 16}
    return Decoder.new(shape(family, vocabulary_size=SIZE, hidden_size=64, mlp_width=96, **sizes), 1, spread=0.2)


def write_gguf(
    path: Path, kind: str, family: str = "llama", *, omit: str = "", rope: Sequence[float] = (), **changes: Any
) -> Path:
    """Write a random model with GGUF's own library. `kind` is the type of its matrices; `changes` are metadata."""
    import gguf

    model, tokenizer = decoder(family), bytes_()
    shape = model.shape
    writer = gguf.GGUFWriter(path, family)
    values = {
        "hidden_size": shape.hidden_size, "intermediate_size": shape.mlp_width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.max_positions,
    }  # fmt: skip
    head_dim = "rope.dimension_count" if family == "llama" else "attention.key_length"
    for key, value in ({FIELDS[name]: x for name, x in values.items()} | {head_dim: shape.head_dim}).items():
        writer.add_uint32(f"{family}.{key}", value)
    writer.add_float32(f"{family}.rope.freq_base", shape.rope_theta)
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", shape.rms_norm_eps)
    for key, value in changes.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    add_tokenizer(writer, tokenizer)
    if rope:
        writer.add_tensor("rope_freqs.weight", np.array(rope, np.float32))
    for name, weight in model.named_parameters():
        source = gguf_name(name)
        if source == omit:
            continue
        stored = weight.detach()
        if family == "llama" and ("attn_q." in source or "attn_k." in source):
            stored = in_pairs(stored, shape.heads if "attn_q." in source else shape.kv_heads)
        dtype = gguf.GGMLQuantizationType[kind if weight.ndim == 2 else "F32"]
        writer.add_tensor(source, gguf.quantize(stored.numpy(), dtype), raw_dtype=dtype)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def add_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    """The vocabulary and merges of a byte-level tokenizer, its special tokens, and a chat template."""
    import json

    model = json.loads(tokenizer.tokenizer_json)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), SIZE)]  # llama.cpp fills up to the rows of the embedding
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in ENDS else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    for token, key in ENDS.items():
        writer.add_uint32(f"tokenizer.ggml.{key}", tokens.index(token))
    writer.add_chat_template(TEMPLATE)


def gguf_name(name: str) -> str:
    """GGUF's name of a parameter."""
    names = {ours: theirs for theirs, ours in MODULES.items()}
    module, _, last = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{names[module]}.{last}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{names[inner]}.{last}"


def in_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head pair by pair, as llama.cpp stores them."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def text(value: str) -> bytes:
    """A string of the format."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(metadata: list[bytes], tensors: list[bytes], *, version: int = 3) -> bytes:
    """A header from encoded entries."""
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)) + b"".join([*metadata, *tensors])


def entry(name: str, kind: int, value: bytes) -> bytes:
    """An entry of the metadata."""
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """An entry of the table of tensors; `shape` in the order of the file."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
