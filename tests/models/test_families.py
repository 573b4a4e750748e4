"""Families of the native decoder with their optional features, and backbones: each equals transformers' model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.models import read_model, read_shape, write_model
from groupwise.models.decoder.convert_configurations import config_of
from groupwise.models.decoder.rope_scaling import (
    LinearRopeScaling,
    Llama3RopeScaling,
    YarnRopeScaling,
    parameters_of,
    scaling_of,
)
from groupwise.models.decoder.transformers_model import TransformersBackbone
from tests.models.directories import characters, shape
from tests.models.plain import PROMPT, generated, greedy, load, made, ours, theirs, written


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **fields}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
WARM = {**YARN, "beta_fast": 8.0, "beta_slow": 0.5, "mscale": 1.5, "mscale_all_dim": 0.5, "truncate": False}
SLIDES = ["sliding_attention", "full_attention"]
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen2 yarn": ("Qwen2", rope("yarn", **YARN)),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3 biases": ("Qwen3", {"head_dim": 12, "attention_bias": True}),
    "qwen3 window": ("Qwen3", {"use_sliding_window": True, "sliding_window": 20, "layer_types": SLIDES}),
    "qwen3 dynamic": ("Qwen3", rope("dynamic", factor=4.0)),
    "llama": ("Llama", {}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama linear": ("Llama", rope("linear", factor=4.0)),
    "llama llama3": ("Llama", rope("llama3", **LLAMA3)),
    "llama yarn": ("Llama", rope("yarn", **WARM)),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral window": ("Mistral", {"sliding_window": 7}),
    "mistral yarn": ("Mistral", {"sliding_window": 100, **rope("yarn", **YARN, attention_factor=0.8)}),
}

MOE = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", {"head_dim": 12}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 12,
            "sliding_window": 9,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 10,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 12,
            "sliding_window": 9,
            "query_pre_attn_scalar": 10,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": (
        "GPT2",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 250, "scale_attn_by_inverse_layer_idx": True},
    ),
    "phi": ("Phi", {"partial_rotary_factor": 0.5, "num_key_value_heads": 4}),
    "qwen3 moe": ("Qwen3Moe", {"head_dim": 12, **MOE}),
    "cohere": ("Cohere", {"logit_scale": 0.3, "use_qk_norm": True}),
    "granite": ("Granite", {"logits_scaling": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.4}),
    "deepseek": (
        "DeepseekV3",
        {
            "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
            "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        },
    ),
    "a llama of another activation": ("Llama", {"hidden_act": "gelu"}),
    "a llama that turns half": ("Llama", rope("default", partial_rotary_factor=0.5)),
}  # fmt: skip


@pytest.fixture(params=DECODERS | BACKBONES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A directory and its model. Its other attention had no soft cap for Gemma 2 in transformers 5.20."""
    kind, changes = (DECODERS | BACKBONES)[request.param]
    model: Any = made(tmp_path, kind, **changes)
    model.set_attn_implementation("eager")
    return tmp_path, model


def test_log_probs_and_gradients_equal_the_plain_forward(case: tuple[Path, Any], request: Any) -> None:
    """In float64, except norms and rotary positions, which transformers computes in float32."""
    path, _ = case
    model = read_model(path, dtype=torch.float64)
    (logp, ours_by), (expected, by) = ours(model, written()), theirs(load(path, torch.float64), written())
    assert expected.std() > (0.1 if isinstance(model, TransformersBackbone) else 0.3)
    assert torch.allclose(logp, expected, rtol=0, atol=2e-5)
    if isinstance(model, TransformersBackbone):
        assert ours_by.keys() == by.keys() and sum(bool(g.norm() > 1e-4) for g in by.values()) > len(by) / 2
    else:
        assert ours_by.keys() == by.keys() - {"lm_head.weight"} | (ours_by.keys() & {"lm_head.weight"})
        assert all(by[name].norm() > 1e-3 for name in ours_by if "k_proj.bias" not in name)
    assert all((g - by[name]).norm() <= 1e-4 * by[name].norm() + 1e-6 for name, g in ours_by.items())
    assert isinstance(model, TransformersBackbone) == any(f"[{name}]" in request.node.name for name in BACKBONES)


def test_greedy_answers_equal_generate(case: tuple[Path, Any]) -> None:
    """Up to 150 tokens: longer than the windows and the unscaled lengths of pretraining."""
    path, model = case
    read, prompts = read_model(path), (PROMPT, PROMPT[20:110], PROMPT[7:30])
    answers = [greedy(read, prompt) for prompt in prompts]
    assert answers == [generated(model, prompt) for prompt in prompts]
    assert len(set(sum(answers, ()))) > 1


def test_transformers_loads_the_directories_that_we_write(case: tuple[Path, Any], tmp_path: Path) -> None:
    path, model = case
    write_model(read_model(path), tmp_path / "again", tokenizer=characters())
    assert read_shape(tmp_path / "again") == read_shape(path)
    with torch.no_grad():
        actual, expected = (m(torch.tensor([PROMPT])).logits for m in (load(tmp_path / "again"), model))
    assert torch.allclose(actual, expected, rtol=0, atol=1e-5)
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["eos_token_id"] == [0]


@pytest.mark.parametrize(
    "part",
    [
        LinearRopeScaling(factor=3.0),
        Llama3RopeScaling(**LLAMA3),  # pyright: ignore[reportArgumentType]
        YarnRopeScaling(**YARN),  # pyright: ignore[reportArgumentType]
        YarnRopeScaling(**WARM),
        YarnRopeScaling(factor=40.0, original_max_position_embeddings=4096, beta_fast=1.0, beta_slow=1.0),
    ],
)
def test_frequencies_are_those_of_transformers(part: Any) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta, dim = 10_000.0, 64
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, rope_parameters=parameters_of(part) | {"rope_theta": theta}
    )
    expected, stretch = ROPE_INIT_FUNCTIONS[part.kind](config, device=torch.device("cpu"))
    plain = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    assert torch.allclose(part(plain, theta), expected.double(), rtol=1e-6)
    assert not torch.allclose(part(plain, theta), plain, rtol=1e-3)
    assert part.attention_scaling == pytest.approx(stretch, rel=1e-12)
    assert scaling_of(parameters_of(part), 1) == part


def test_old_names_and_defaults_are_read(tmp_path: Path) -> None:
    """`type` and a top-level `rope_theta`, as before transformers 5; the original length as a top-level field."""
    part = scaling_of({"type": "yarn", "factor": 2}, 4096)
    assert part == YarnRopeScaling(factor=2.0, original_max_position_embeddings=4096)
    config = config_of(shape("llama")) | {"rope_scaling": {"type": "yarn", "factor": 4.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path).max_positions == 512  # 128 times the scaling's factor
    config |= {"original_max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(tmp_path).rope_scaling == YarnRopeScaling(factor=4.0, original_max_position_embeddings=64)
