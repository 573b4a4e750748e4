"""Weights in 4 bits: equal loads, exact products, adapters on them, and what is written from them."""

import copy
import json
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from groupwise.core import BadData, MissingRequirement, Usage
from groupwise.engines.remote.published_weights import published_bytes, published_weights
from groupwise.models import (
    Lora,
    PrefixPacking,
    attach,
    dequantize,
    find_model,
    fingerprint,
    frozen_weights,
    is_quantized,
    merge,
    outline,
    quantized_linear,
    quantized_weights,
    read_model,
    read_tokenizer,
    stored_quantization,
    write_adapter,
    write_model,
)
from groupwise.models.quantized_linear import BLOCK, QuantizedLinear, load_bitsandbytes
from tests.models.directories import directory
from tests.models.mixtures import trainable
from tests.models.test_lora import LORA, taught
from tests.models.test_transformers import PROMPT, close, logits
from tests.pretended_bitsandbytes import TABLE

pytest.importorskip("peft", reason="adapters need peft: pip install 'groupwise[lora]'")
pytestmark = pytest.mark.usefixtures("bitsandbytes")


def nf4(path: Path, **options: Any) -> nn.Module:
    return read_model(path, quantization="nf4", **options)


def store_in_4_bits(source: Path, path: Path, *, double: bool) -> Path:
    """Write a model as transformers stores it in NF4, with or without double quantisation of its scales."""
    write_model(read_model(source), path, tokenizer=read_tokenizer(source))
    config = json.loads((path / "config.json").read_text())
    scheme = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    tensors, functional = load_file(path / "model.safetensors"), load_bitsandbytes().functional
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        layer = QuantizedLinear.of(weight := tensors.pop(name))
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "float32", "shape": [*weight.shape]}
        parts = {"": layer.weight.data, ".absmax": layer.absmax.data}
        parts[".quant_map"] = functional.get_4bit_type("nf4", device="cpu")
        if double:
            scales, offset = layer.absmax.data, float(layer.absmax.mean())
            outer = torch.stack([x.sub(offset).abs().max() for x in scales.split(256)])
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            parts[".nested_quant_map"], parts[".nested_absmax"] = torch.linspace(-1, 1, 256), outer
            near = (scales - offset) / outer.repeat_interleave(256)[: len(scales)]
            parts[".absmax"] = torch.bucketize(near, torch.linspace(-1, 1, 256)).clamp(max=255).to(torch.uint8)
        parts[".quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors |= {f"{name}{part}": x.contiguous() for part, x in parts.items()}
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_a_load_in_4_bits_computes_as_its_dequantised_copy(dtype: torch.dtype, tmp_path: Path) -> None:
    base = directory(tmp_path, "qwen2")
    model, again, exact = nf4(base, dtype=dtype), nf4(base, dtype=dtype), read_model(base, dtype=dtype)
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    layers = {name for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}
    assert layers == {name for name, x in exact.named_modules() if isinstance(x, nn.Linear) and name != "lm_head"}
    torch.nn.init.normal_(model.get_parameter("model.layers.0.self_attn.q_proj.bias"))
    plain = copy.deepcopy(model)
    dequantize(plain)
    assert is_quantized(model) and not is_quantized(plain) and {w.dtype for w in plain.parameters()} == {dtype}
    assert torch.equal(logits(model, PROMPT), logits(plain, PROMPT))
    assert (logits(model, PROMPT) - logits(exact, PROMPT)).abs().max() > 0.1
    assert not any(weight.requires_grad for weight in model.parameters())
    assert frozen_weights(model) == sum(weight.numel() for weight in exact.parameters())


def test_each_weight_is_the_nearest_of_16_multiples_of_its_blocks_scale() -> None:
    weight = torch.randn(6, 48, generator=torch.Generator().manual_seed(5))
    found = QuantizedLinear.of(weight).dequantized(torch.float32).numpy().ravel()
    numbers, table = weight.numpy().ravel(), np.array(TABLE, dtype=np.float32)
    for start in range(0, len(numbers), BLOCK):
        block = numbers[start : start + BLOCK]
        levels = table * np.abs(block).max()
        nearest = levels[np.abs(block[:, None] - levels).argmin(1)]
        assert np.abs(found[start : start + BLOCK] - nearest).max() < 1e-6


def test_adapters_get_the_gradients_of_the_dequantised_model(tmp_path: Path) -> None:
    base = directory(tmp_path)
    model = nf4(base)
    plain = copy.deepcopy(model)
    dequantize(plain)
    gradients = []
    for each in (model, plain):
        attach(each, LORA, seed=1)
        taught(each)
        layout = PrefixPacking.of([PROMPT], [(1, 2)])
        each.head(each(layout.tokens, layout)).square().sum().backward()
        trained = {name: weight for name, weight in each.named_parameters() if weight.requires_grad}
        assert trained and all("lora_" in name for name in trained)
        gradients.append([weight.grad for weight in trained.values()])
    assert all(map(torch.equal, *gradients)) and all(grad.abs().max() > 0 for grad in gradients[0])


def test_an_adapter_has_the_dtype_of_the_other_weights(tmp_path: Path) -> None:
    model = nf4(directory(tmp_path), dtype=torch.bfloat16)
    attach(model, LORA, seed=1)
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.bfloat16}


def test_layers_are_quantised_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, earlier, quantise = directory(tmp_path), list[Any](), QuantizedLinear.of

    def recorded(weight: Tensor, bias: nn.Parameter | None = None) -> QuantizedLinear:
        assert not any(ref() is not None for ref in earlier), "an earlier matrix exists beside this one"
        earlier.append(weakref.ref(weight))
        return quantise(weight, bias)

    monkeypatch.setattr(QuantizedLinear, "of", recorded)
    nf4(base)
    assert len(earlier) == 14


def test_an_adapter_finds_its_base_in_4_bits_again_and_merges_into_a_plain_model(tmp_path: Path) -> None:
    base, path = directory(tmp_path / "base"), tmp_path / "adapter"
    model = nf4(base)
    attach(model, LORA, seed=1)
    taught(model)
    write_adapter(model, path, base=str(base), base_sha256=fingerprint(base))
    assert stored_quantization(path) == "nf4" and stored_quantization(base) is None
    merged = read_model(path)
    assert is_quantized(merged) and torch.equal(logits(merged, PROMPT), logits(model, PROMPT))
    merge(merged)
    assert all(weight.requires_grad for weight in merged.parameters())
    write_model(merged, tmp_path / "merged", tokenizer=read_tokenizer(base), source=base)
    plain = read_model(tmp_path / "merged")
    assert not is_quantized(plain) and close(logits(plain, PROMPT), logits(model, PROMPT), 2e-5)
    weights = dict(merged.named_parameters())
    dequantize(bare := nf4(base))
    name = "model.layers.0.mlp.up_proj.weight"  # without an adapter: the dequantised weights themselves
    assert torch.equal(weights[name], bare.get_parameter(name))


def test_an_engine_of_merged_weights_gets_those_that_merge_leaves(tmp_path: Path) -> None:
    """Layers with and without an adapter; the model keeps its layers in 4 bits."""
    base = directory(tmp_path / "base")
    model = nf4(base)
    attach(model, replace(LORA, target_modules=("q_proj", "down_proj")), seed=1)
    taught(model)
    published = published_weights(model, model.state_dict(), merges=True)
    assert is_quantized(model) and published_bytes(model) > published_bytes(nf4(base))
    merge(model)
    expected = model.state_dict()
    assert published.keys() == expected.keys() and all(torch.equal(x, expected[n]) for n, x in published.items())
    plain = nf4(base)
    dequantize(plain)
    assert published_bytes(nf4(base)) == published_bytes(plain) == sum(x.nbytes for x in expected.values())


def test_a_model_in_4_bits_is_written_dequantised(tmp_path: Path) -> None:
    base = directory(tmp_path / "base")
    model = nf4(base)
    before = logits(model, PROMPT)
    write_model(model, tmp_path / "plain", tokenizer=read_tokenizer(base))
    assert torch.equal(logits(read_model(tmp_path / "plain"), PROMPT), before)


@pytest.mark.parametrize("double", (False, True))
def test_a_stored_model_is_read_as_it_is(double: bool, tmp_path: Path) -> None:
    base = directory(tmp_path / "base", "qwen2")
    stored = store_in_4_bits(base, tmp_path / "stored", double=double)
    model, loaded = read_model(stored, dtype=torch.bfloat16), nf4(base, dtype=torch.bfloat16)
    assert is_quantized(model) and stored_quantization(stored) == "nf4"
    assert fingerprint(stored) != fingerprint(base)
    for name, weight in loaded.named_parameters():
        found = model.get_parameter(name)
        near = 0.01 if double and "absmax" in name else 0
        assert found.dtype == weight.dtype and (found.float() - weight.float()).abs().max() <= near


def renamed(tensors: dict[str, Tensor], old: str, new: str) -> None:
    tensors[new] = tensors.pop(old)


def with_state(tensors: dict[str, Tensor], **changes: Any) -> None:
    name = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(tensors[name].tolist())) | changes
    tensors[name] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


UP = "model.layers.0.mlp.up_proj.weight"
DAMAGED: dict[str, tuple[Any, str]] = {
    "scales too short": (lambda t: t.update({f"{UP}.absmax": torch.ones(3)}), "absmax is F32 of shape (3,), expected"),
    "scales missing": (lambda t: t.pop(f"{UP}.absmax"), "absmax is missing"),
    "weights too short": (lambda t: t.update({UP: torch.zeros(7, 1, dtype=torch.uint8)}), "is U8 of shape (7, 1)"),
    "no bytes": (lambda t: t.update({UP: torch.zeros(768, 1)}), "is F32 of shape (768, 1)"),
    "scales not finite": (
        lambda t: t.update({f"{UP}.absmax": torch.full((24,), torch.nan)}),
        "numbers of model.layers.0.mlp.up_proj.weight.absmax",
    ),
    "another table": (lambda t: t.update({f"{UP}.quant_map": torch.zeros(16)}), "quant_map is not the table of nf4"),
    "other blocks": (lambda t: with_state(t, blocksize=128), "blocksize 128, expected 64"),
    "another shape": (lambda t: with_state(t, shape=[32, 48]), "shape [32, 48], expected [48, 32]"),
    "another type": (lambda t: with_state(t, quant_type="fp4"), "quant_type 'fp4', expected nf4"),
    "a long description": (lambda t: with_state(t, more="x" * (1 << 16)), "has more than 65536 bytes"),
    "an embedding in 4 bits": (
        lambda t: t.update(
            {"model.embed_tokens.weight.quant_state.bitsandbytes__nf4": torch.zeros(2, dtype=torch.uint8)}
        ),
        "model.embed_tokens.weight is in 4 bits, and no weight matrix of a layer",
    ),
    "a weight missing": (lambda t: t.pop("model.norm.weight"), "missing (1): model.norm.weight"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused_before_their_weights_are_used(damage: str, tmp_path: Path) -> None:
    stored = store_in_4_bits(directory(tmp_path / "base"), tmp_path / "stored", double=False)
    change, evidence = DAMAGED[damage]
    tensors = load_file(stored / "model.safetensors")
    change(tensors)
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(BadData) as error:
        read_model(stored)
    assert evidence in error.value.evidence and error.value.fix, error.value


def test_damaged_scales_of_scales_are_refused(tmp_path: Path) -> None:
    stored = store_in_4_bits(directory(tmp_path / "base"), tmp_path / "stored", double=True)
    whole = load_file(stored / "model.safetensors")
    for changes, evidence in (
        ({"nested_blocksize": 64}, "nested_blocksize 64, expected 256"),
        ({"nested_offset": "much"}, "nested_offset is 'much'"),
        ({"nested_offset": None}, "nested_offset is None"),
    ):
        tensors = dict(whole)
        with_state(tensors, **changes)
        save_file(tensors, stored / "model.safetensors")
        with pytest.raises(BadData) as error:
            read_model(stored)
        assert evidence in error.value.evidence


def test_other_models_are_refused(tmp_path: Path) -> None:
    mixture = tmp_path / "mixture"
    trainable(mixture)
    for model, kind in ((mixture, "modules of transformers"), (find_model("rings"), "a flow model")):
        with pytest.raises(Usage, match=kind) as error:
            nf4(model)
        assert "Qwen2, Qwen3, Llama or Mistral" in error.value.fix


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    load_bitsandbytes.cache_clear()
    monkeypatch.setattr(quantized_linear, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(MissingRequirement, match="need bitsandbytes") as error:
        nf4(directory(tmp_path))
    assert "groupwise[quantization]" in error.value.fix and "kernels" not in sys.modules


def test_its_import_finds_no_package_that_loads_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[object]()
    hidden = SimpleNamespace(import_module=lambda name: seen.append(sys.modules["kernels"]) or "package")
    monkeypatch.setattr(quantized_linear, "importlib", hidden)
    for present in (True, False):
        load_bitsandbytes.cache_clear()
        if present:
            monkeypatch.setitem(sys.modules, "kernels", quantized_weights)
        else:
            monkeypatch.delitem(sys.modules, "kernels")
        assert load_bitsandbytes() == "package" and seen.pop() is None
        assert sys.modules.get("kernels") is (quantized_weights if present else None)


def test_the_rank_of_an_adapter_is_that_of_the_matrix(tmp_path: Path) -> None:
    model = nf4(directory(tmp_path))
    attach(model, Lora(rank=32, target_modules=("up_proj",)), seed=0)
    assert outline(tmp_path).get_parameter("model.layers.0.mlp.up_proj.weight").shape == (48, 32)
    with pytest.raises(Usage, match="above the smaller dimension"):
        attach(nf4(tmp_path), Lora(rank=33, target_modules=("up_proj",)), seed=0)
