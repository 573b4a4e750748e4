"""Converts configurations of Qwen2, Qwen3, Llama and Mistral to a decoder's `DecoderShape`, and back."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from groupwise.models.decoder.decoder import DecoderShape
from groupwise.models.decoder.rope_scaling import SCALINGS, YarnRopeScaling, parameters_of, scaling_of
from groupwise.models.json_fields import flag, mapping, real, short, whole

LAYERS, SIZE, POSITIONS = 1 << 10, 1 << 24, 1 << 40
"""Upper bounds on a model's configuration: the number of layers, any width, and the sequence length."""
SLIDING = {"sliding_attention": True, "full_attention": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamilyFeatures:
    """The features of a model family, and the defaults of its configurations."""

    architecture_name: str
    qk_norm: bool = False
    qkv_bias: bool = False
    bias_config_keys: tuple[str, ...] = ()
    """The biases that a configuration can enable: `attention_bias` (queries, keys, values, output) and `mlp_bias`."""
    has_sliding_windows: bool = False
    """Whether the family has sliding windows; with `window_in_every_layer`, in every layer."""
    window_in_every_layer: bool = False
    config_defaults: tuple[tuple[str, Any], ...] = ()


FAMILIES: dict[str, ModelFamilyFeatures] = {
    "qwen2": ModelFamilyFeatures(architecture_name="Qwen2ForCausalLM", qkv_bias=True, has_sliding_windows=True),
    "qwen3": ModelFamilyFeatures(
        architecture_name="Qwen3ForCausalLM",
        qk_norm=True,
        bias_config_keys=("attention_bias",),
        has_sliding_windows=True,
        config_defaults=(("head_dim", 128),),
    ),
    "llama": ModelFamilyFeatures(architecture_name="LlamaForCausalLM", bias_config_keys=("attention_bias", "mlp_bias")),
    "mistral": ModelFamilyFeatures(
        architecture_name="MistralForCausalLM",
        has_sliding_windows=True,
        window_in_every_layer=True,
        config_defaults=(("sliding_window", 4096),),
    ),
}


def unsupported(config: Mapping[str, Any]) -> str:
    """The first feature of a configuration that the decoder does not support; empty if it supports all."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        return f"model_type {short(family)}"
    if any(a != FAMILIES[family].architecture_name for a in config.get("architectures") or []):
        return f"architectures {short(config['architectures'])}"
    if config.get("hidden_act", "silu") != "silu":
        return f"hidden_act {short(config['hidden_act'])}"
    rope = rope_of(config)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", *SCALINGS):
        return f"rope_type {short(kind)}"
    if rope.get("partial_rotary_factor", 1) != 1:
        return f"partial_rotary_factor {short(rope['partial_rotary_factor'])}"
    return ""


def shape_of(config: Mapping[str, Any]) -> DecoderShape:
    """Convert a configuration to a `DecoderShape`. KeyError, TypeError or ValueError for an invalid configuration.

    Sizes are at most `LAYERS`, `SIZE` and `POSITIONS`, which bounds the model.
    """
    family = str(config["model_type"])
    kind = FAMILIES[family]
    config = dict(kind.config_defaults) | dict(config)
    biases = {name: name in kind.bias_config_keys and flag(config, name) for name in ("attention_bias", "mlp_bias")}
    rope = rope_of(config)
    positions = whole(config, "max_position_embeddings", low=1, high=POSITIONS)
    scaling = scaling_of(rope, positions)
    if isinstance(scaling, YarnRopeScaling):  # max_position_embeddings is often the length of pretraining
        positions = max(positions, int(scaling.factor * scaling.original_max_position_embeddings))
    width, heads = (whole(config, name, low=1, high=SIZE) for name in ("hidden_size", "num_attention_heads"))
    head_dim = whole(config, "head_dim", low=1, high=SIZE, default=width // heads)
    if heads * head_dim > SIZE:
        raise ValueError(f"{heads} attention heads of {head_dim} dimensions each exceed the largest width, {SIZE}")
    return DecoderShape(
        model_family=family,
        vocabulary_size=whole(config, "vocab_size", low=1, high=SIZE),
        hidden_size=width,
        layers=whole(config, "num_hidden_layers", low=1, high=LAYERS),
        heads=heads,
        kv_heads=whole(config, "num_key_value_heads", low=1, high=SIZE, default=heads),
        head_dim=head_dim,
        mlp_width=whole(config, "intermediate_size", low=1, high=SIZE),
        max_positions=positions,
        rope_theta=real(rope, "rope_theta", low=1 + 1e-9, default=10_000.0),
        rope_scaling=scaling,
        attention_windows=_windows(kind, config, positions),
        rms_norm_eps=real(config, "rms_norm_eps", low=0, high=1, default=1e-6),
        qk_norm=kind.qk_norm,
        qkv_bias=kind.qkv_bias or biases["attention_bias"],
        attention_output_bias=biases["attention_bias"],
        mlp_bias=biases["mlp_bias"],
        tied_embeddings=flag(config, "tie_word_embeddings"),
    )


def config_of(shape: DecoderShape) -> dict[str, Any]:
    """Convert a `DecoderShape` to a configuration for transformers. ValueError if the family does not allow it."""
    kind = FAMILIES[shape.model_family]
    config = {
        "architectures": [kind.architecture_name],
        "model_type": shape.model_family,
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied_embeddings,
        "sliding_window": None,
        "attention_dropout": 0.0,
        "bos_token_id": None,
    }
    if shape.rope_scaling:
        config["rope_scaling"] = parameters_of(shape.rope_scaling)
    for name, value in (("attention_bias", shape.attention_output_bias), ("mlp_bias", shape.mlp_bias)):
        if value:
            config[name] = True
    if any(shape.attention_windows):
        config["sliding_window"] = max(filter(None, shape.attention_windows))
        if not kind.window_in_every_layer:
            slides = ["sliding_attention" if w else "full_attention" for w in shape.attention_windows]
            config |= {"use_sliding_window": True, "layer_types": slides}
    reread = shape_of(config)
    for name in (f.name for f in fields(DecoderShape)):
        if (value := getattr(shape, name)) != (expected := getattr(reread, name)):
            raise ValueError(f"{name} is {value}, but {shape.model_family} has {expected}")
    return config


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the rotary parameters of a configuration, in the form of transformers 5 or of earlier versions."""
    nested = mapping(config, "rope_parameters") or mapping(config, "rope_scaling")
    names = ("rope_theta", "partial_rotary_factor")
    rope = {k: config[k] for k in names if config.get(k) is not None} | dict(nested)
    if config.get("original_max_position_embeddings") is not None:
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return rope


def _windows(kind: ModelFamilyFeatures, config: Mapping[str, Any], positions: int) -> tuple[int | None, ...]:
    """Each layer's attention window in tokens, the token itself included; empty if no layer has one."""
    layers = config["num_hidden_layers"]
    if not kind.has_sliding_windows or config.get("sliding_window") is None:
        return ()
    window = whole(config, "sliding_window", low=1, high=POSITIONS)
    if window >= positions:
        return ()
    if kind.window_in_every_layer:
        return (window,) * layers
    if not flag(config, "use_sliding_window"):
        return ()
    types = config.get("layer_types")
    if not types:
        full = whole(config, "max_window_layers", low=0, high=POSITIONS, default=28)
        return tuple(window if i >= full else None for i in range(layers))
    if not isinstance(types, list) or any(not isinstance(t, str) or t not in SLIDING for t in types):
        raise ValueError(f"layer_types is {short(types)}: it must be a list of {' and '.join(SLIDING)}")
    return tuple(window if SLIDING[t] else None for t in types)
