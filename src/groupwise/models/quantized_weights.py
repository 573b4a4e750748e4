"""Reads weights that bitsandbytes stored in 4 bits, as transformers and unsloth write them.

A matrix `x.weight` is stored as its packed bytes, the scales `x.weight.absmax`, the table of the data type, and JSON
with shape and block size. With double quantisation (arXiv:2305.14314, section 3) the scales are stored in 8 bits, as
indices of a table, with a scale for each 256 of them.
"""

from collections.abc import Callable, Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.core import BadData, Usage
from groupwise.models.decoder.decoder import Decoder, DecoderShape, ModelSizes
from groupwise.models.json_fields import LARGEST, json_object, real, short
from groupwise.models.model_kind import ModelLoadOptions
from groupwise.models.quantized_linear import BLOCK, NF4, QuantizedLinear, load_bitsandbytes
from groupwise.models.safetensors_weights import TensorHeader, refuse_types, tensors

__all__ = ["refuse_quantization"]

STATE = f".quant_state.bitsandbytes__{NF4}"
"""The end of the name of the JSON of a stored matrix."""
NESTED_BLOCK = 256
"""The number of scales with one outer scale, in double quantisation."""
MOST_STATE = 1 << 16
"""The largest JSON of a stored matrix, in bytes."""


def stores_nf4(config: Mapping[str, Any]) -> bool:
    """Whether a config.json says that weights are stored in NF4, in bytes."""
    scheme = config.get("quantization_config")
    return isinstance(scheme, Mapping) and (
        scheme.get("quant_method") == "bitsandbytes"
        and scheme.get("load_in_4bit") is True
        and scheme.get("bnb_4bit_quant_type") == NF4
        and scheme.get("bnb_4bit_quant_storage", "uint8") == "uint8"
    )


def refuse_quantization(name: str | Path, shape: ModelSizes) -> None:
    """Raise Usage for a model whose layers are not quantised here: only those of `Decoder` are."""
    if isinstance(shape, DecoderShape) and shape.kind_name == DecoderShape.kind_name:
        return
    kind = "of modules of transformers" if shape.kind_name == DecoderShape.kind_name else f"a {shape.kind_label}"
    what = f"machine.quantization does not fit {name}: it is {kind}"
    raise Usage(what, fix="leave it out, or use a Qwen2, Qwen3, Llama or Mistral model")


Files = Mapping[Path, Mapping[str, TensorHeader]]
"""The headers of the tensors in each file."""


def linear_shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights that can be in 4 bits, by name: of all linear layers but the head."""
    modules = decoder.model.named_modules(prefix="model")
    return {f"{name}.weight": tuple(layer.weight.shape) for name, layer in modules if isinstance(layer, nn.Linear)}


def quantize_layers(path: Path, decoder: Decoder, files: Files, loading: ModelLoadOptions) -> set[str]:
    """Replace linear layers of a decoder by layers in 4 bits, one by one: at most one matrix exists in its stored type.

    With `loading.quantization` these are all but the head; else those that the files store in 4 bits. Returns the names
    of their weights.
    """
    homes = {name: file for file, headers in files.items() for name in headers}
    stored, quantized = quantized_names(homes), set[str]()

    def read(name: str) -> Tensor:
        return tensors(homes[name], [name])[name]

    for name, shape in linear_shapes(decoder).items():
        layer = decoder.get_submodule(name.removesuffix(".weight"))
        assert isinstance(layer, nn.Linear)
        if name in stored:
            packed, scales = (x.to(loading.device) for x in read_stored(path, name, shape, read))
            sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
            replacement = QuantizedLinear(packed, scales, layer.bias, **sizes)
        elif loading.quantization:
            refuse_types(homes[name], {name: files[homes[name]][name]})
            replacement = QuantizedLinear.of(read(name).to(loading.device), layer.bias)
        else:
            continue
        decoder.set_submodule(name.removesuffix(".weight"), replacement)
        quantized.add(name)
    return quantized


def without_parts(
    path: Path, stored: Mapping[str, TensorHeader], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorHeader]:
    """The headers with each matrix in 4 bits in place of its parts; `shapes` are those of the model's weights, by name.

    BadData for a part that is missing, or of another type or size.
    """
    names = quantized_names(stored)
    whole = {name: x for name, x in stored.items() if name not in names and matrix_of(name) not in names}
    for name in names:
        shape = shapes.get(name, ())
        if len(shape) != 2:
            raise _damaged(path, f"{name} is in 4 bits, and no weight matrix of a layer")
        for part, expected in _parts(name, prod(shape), nested=f"{name}.nested_absmax" in stored).items():
            if (header := stored.get(part)) != expected:
                raise _damaged(path, f"{part} is {_described(header)}, expected {_described(expected)}")
        if prod(stored[f"{name}{STATE}"].shape) > MOST_STATE:
            raise _damaged(path, f"{name}{STATE} has more than {MOST_STATE} bytes")
        whole[name] = TensorHeader("F32", shape)
    return whole


def quantized_names(stored: Collection[str]) -> set[str]:
    """The names of the weights that are stored in 4 bits."""
    return {name.removesuffix(STATE) for name in stored if name.endswith(STATE)}


def matrix_of(name: str) -> str:
    """The name of the weight matrix that a stored tensor belongs to, if it is a part of one; else another name."""
    layer, _, _ = name.partition(".weight")
    return f"{layer}.weight"


def _parts(name: str, weights: int, *, nested: bool) -> dict[str, TensorHeader]:
    """The expected headers of the parts of a matrix, without its JSON."""
    blocks = -(-weights // BLOCK)
    parts = {name: TensorHeader("U8", (-(-weights // 2), 1)), f"{name}.quant_map": TensorHeader("F32", (16,))}
    if not nested:
        return {**parts, f"{name}.absmax": TensorHeader("F32", (blocks,))}
    scales = {"absmax": TensorHeader("U8", (blocks,)), "nested_quant_map": TensorHeader("F32", (256,))}
    scales["nested_absmax"] = TensorHeader("F32", (-(-blocks // NESTED_BLOCK),))
    return {**parts, **{f"{name}.{part}": x for part, x in scales.items()}}


def _described(header: TensorHeader | None) -> str:
    return f"{header.dtype} of shape {header.shape}" if header else "missing"


def read_stored(path: Path, name: str, shape: tuple[int, ...], read: Callable[[str], Tensor]) -> tuple[Tensor, Tensor]:
    """The packed bytes and the float32 scales of a stored matrix whose headers `without_parts` checked.

    `read` reads a tensor by its name.
    """
    state = json_object(read(f"{name}{STATE}").numpy().tobytes(), f"{name}{STATE} in {path}")
    layout = {"quant_type": NF4, "blocksize": BLOCK, "shape": list(shape)}
    if odd := [f"{key} {short(state.get(key))}, expected {x}" for key, x in layout.items() if state.get(key) != x]:
        raise _damaged(path, f"{name}: {', '.join(odd)}")
    if not torch.equal(read(f"{name}.quant_map"), load_bitsandbytes().functional.get_4bit_type(NF4, device="cpu")):
        raise _damaged(path, f"{name}.quant_map is not the table of {NF4}")
    scales = read(f"{name}.absmax")
    if scales.dtype == torch.uint8:
        if (size := state.get("nested_blocksize")) != NESTED_BLOCK:
            raise _damaged(path, f"{name}: nested_blocksize {short(size)}, expected {NESTED_BLOCK}")
        table, outer = read(f"{name}.nested_quant_map"), read(f"{name}.nested_absmax")
        scales = table[scales.long()] * outer.repeat_interleave(NESTED_BLOCK)[: len(scales)]
        scales = scales + _offset(path, name, state)
    return read(name), scales


def _offset(path: Path, name: str, state: Mapping[str, Any]) -> float:
    """The mean of a matrix's scales, which double quantisation subtracts."""
    try:
        return real(state, "nested_offset", low=-LARGEST)
    except (KeyError, ValueError) as error:
        raise _damaged(path, f"{name}: {error}") from error


def _damaged(path: Path, evidence: str) -> BadData:
    fix = "fetch the directory again, or take the model that it was quantised from"
    return BadData(f"{path} has weights in 4 bits that are not those of its config.json", evidence=evidence, fix=fix)
