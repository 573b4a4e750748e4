"""Models of transformers as backbones: packed logits equal separate ones."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from groupwise.core import BadData, Usage
from groupwise.models import read_model, read_shape
from groupwise.models.decoder.transformers_model import TransformersBackbone
from tests.models.directories import directory
from tests.models.plain import PROMPT, greedy, made, ours, written
from tests.models.test_checkpoint import change
from tests.models.test_families import BACKBONES


def test_recomputed_layers_give_equal_gradients(tmp_path: Path) -> None:
    made(tmp_path, *BACKBONES["gpt2"][:1], **BACKBONES["gpt2"][1])
    model = read_model(tmp_path, dtype=torch.float64)
    kept = ours(model, written())[1]
    assert not model.recompute
    model.recompute = True
    calls: list[int] = []
    model.causal.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))  # pyright: ignore
    again = ours(model, written())[1]
    assert len(calls) == 2  # in forward and again in backward
    assert model.recompute and all(torch.equal(kept[name], g) for name, g in again.items())
    reference = copy.deepcopy(model)  # a reference is a copy that later steps do not change
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert not torch.equal(ours(reference, written())[0], ours(model, written())[0])
    assert all(torch.equal(kept[name], g) for name, g in ours(reference, written())[1].items())


def test_padding_beyond_the_last_position_is_allowed(tmp_path: Path) -> None:
    """A prompt of 245 tokens fits; all but the last are padded to 248. Learned positions end at 246."""
    kind, changes = BACKBONES["gpt2"]
    made(tmp_path, kind, **{**changes, "n_positions": 246, "max_position_embeddings": 246})
    assert read_shape(tmp_path).max_positions == 246
    assert len(greedy(read_model(tmp_path), PROMPT + PROMPT[:95], most=1)) == 1


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no attention": ("Mamba", {"num_hidden_layers": 1}, "no attention that can be replaced"),
    "attention of its own": ("Bloom", {"n_layer": 2, "n_head": 4}, "no attention that can be replaced"),
    "trackers": (
        "GptOss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
        "its attention has trackers",
    ),
    "a layer without attention": ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "in order"),
    "a convolution after attention": (
        "Lfm2",
        {"layer_types": ["full_attention", "conv"]},
        "interact outside attention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_mix_tokens_outside_attention_are_refused(tmp_path: Path, name: str) -> None:
    kind, changes, why = REFUSED[name]
    made(tmp_path, kind, **changes)
    with pytest.raises(BadData) as refusal:
        read_model(tmp_path)
    assert re.search(why, refusal.value.evidence) and refusal.value.fix


def test_a_model_without_attention_heads_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "vocab_size": 50, "hidden_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadData, match="has no attention") as refusal:
        read_shape(tmp_path)
    assert "no attention that can be replaced" in refusal.value.evidence and "Llama" in refusal.value.fix


def test_directories_with_other_tensors_than_described_are_refused(tmp_path: Path) -> None:
    made(tmp_path, *BACKBONES["gpt2"][:1], **BACKBONES["gpt2"][1])
    file = tmp_path / "model.safetensors"
    weights, whole = load_file(file), file.read_bytes()
    save_file({n: x for n, x in weights.items() if n != "transformer.h.0.attn.c_attn.weight"}, file)
    with pytest.raises(BadData, match="not those that its") as refusal:
        read_model(tmp_path)
    assert "missing (1): transformer.h.0.attn.c_attn.weight" in refusal.value.evidence
    file.write_bytes(whole[:-40])
    with pytest.raises(BadData, match="cannot be read by transformers"):
        read_model(tmp_path)
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BadData, match="only a pickle checkpoint"):
        read_model(tmp_path)
    change(tmp_path, n_head=5)
    with pytest.raises(BadData):
        read_model(tmp_path)


def test_unknown_rope_types_are_refused_by_transformers(tmp_path: Path) -> None:
    change(directory(tmp_path), rope_scaling={"rope_type": "banana"})
    with pytest.raises(BadData, match="cannot be read by transformers") as refusal:
        read_model(tmp_path)
    assert "banana" in refusal.value.evidence


def test_recompute_is_refused_without_gradient_checkpointing(tmp_path: Path) -> None:
    made(tmp_path, *BACKBONES["gpt2"][:1], **BACKBONES["gpt2"][1])
    model = read_model(tmp_path)
    assert isinstance(model, TransformersBackbone)
    model.layers = list  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(Usage, match="cannot recompute its layers"):
        model.recompute = True


def test_modules_of_transformers_are_not_compiled(tmp_path: Path) -> None:
    made(tmp_path, *BACKBONES["gpt2"][:1], **BACKBONES["gpt2"][1])
    model = read_model(tmp_path)
    model.compiled = False
    with pytest.raises(Usage, match="is not compiled here"):
        model.compiled = True
    assert not model.compiled
