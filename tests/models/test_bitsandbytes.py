"""The real package bitsandbytes: the pretended one has its bits; files that transformers writes with it are read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from groupwise.models import dequantize, quantized_linear, read_model
from groupwise.models.quantized_linear import QuantizedLinear, load_bitsandbytes
from tests import pretended_bitsandbytes
from tests.models.directories import directory
from tests.models.test_transformers import PROMPT, logits

pytestmark = [pytest.mark.quantization]
pytest.importorskip("bitsandbytes", reason="run by `make test-quantization`")


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((48, 32), (5, 26), (64, 64)))
def test_the_pretended_package_has_its_bits(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight[0, :3] = 0
    found: list[list[Any]] = []
    for package in (load_bitsandbytes(), pretended_bitsandbytes):
        monkeypatch.setattr(quantized_linear, "load_bitsandbytes", lambda package=package: package)
        layer = QuantizedLinear.of(weight, nn.Parameter(torch.ones(shape[0], dtype=dtype)))
        x = torch.randn(7, shape[1], generator=torch.Generator().manual_seed(2)).to(dtype).requires_grad_()
        product = layer(x)
        product.sum().backward()
        with torch.no_grad():
            assert torch.equal(product, layer(x)), "generating and training compute the same"
        found.append([*layer.state_dict().values(), layer.dequantized(dtype), product, x.grad])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_its_own_product_is_ours_where_rows_are_whole_blocks(dtype: torch.dtype) -> None:
    """On a GPU its own product is used; on a CPU that is wrong for other rows, at least in version 0.50.2."""
    layer = QuantizedLinear.of(torch.randn(48, 128, generator=torch.Generator().manual_seed(1)).to(dtype))
    x = torch.randn(7, 128, generator=torch.Generator().manual_seed(2)).to(dtype)
    product = load_bitsandbytes().matmul_4bit(x, layer.weight, layer._state(dtype, 48, 128))
    assert torch.equal(product, layer(x))


@pytest.mark.parametrize("double", (False, True))
def test_what_transformers_stores_is_read_with_its_bits(double: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = directory(tmp_path / "base", "qwen2")
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    theirs: nn.Module = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=settings, dtype=torch.float32, device_map="cpu"
    )
    theirs.save_pretrained(stored := tmp_path / "stored")  # pyright: ignore[reportCallIssue]
    (stored / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    model = read_model(stored)
    layers = {name: x for name, x in model.named_modules() if isinstance(x, QuantizedLinear)}
    assert len(layers) == 14
    for name, layer in layers.items():
        weight: Any = theirs.get_submodule(name).weight
        weight.quant_state.shape = torch.Size((layer.out_features * layer.in_features,))
        expected = load_bitsandbytes().functional.dequantize_4bit(weight.data, weight.quant_state)
        assert torch.equal(layer.dequantized(torch.float32).flatten(), expected.flatten())
    before = logits(model, PROMPT)
    dequantize(model)
    assert torch.equal(logits(model, PROMPT), before)
