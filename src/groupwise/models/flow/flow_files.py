"""Reads and writes the directory of a flow model: config.json, model.safetensors, and the tokenizer of its prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.models.flow.denoising_settings import MOST_STEPS
from groupwise.models.flow.flow_policy import FlowPolicy
from groupwise.models.flow.velocity_network import END, FlowShape
from groupwise.models.json_fields import whole
from groupwise.models.model_kind import ModelKind, ModelLoadOptions
from groupwise.models.safetensors_weights import load_exactly

FLOW = "groupwise_flow"
SIZE = 1 << 20
"""The largest width, state and vocabulary."""


class FlowKind(ModelKind):
    """Flow models in the format of this package."""

    name = FlowShape.kind_name
    config_description = "a flow model"
    auto_dtype_is_bfloat16 = False

    def recognises(self, path: Path, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == FLOW

    def shape(self, path: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False) -> FlowShape:
        return flow_shape(config)

    def read(self, path: Path, shape: FlowShape, loading: ModelLoadOptions) -> FlowPolicy:
        policy = FlowPolicy(shape)
        fix = "train it first, or use rings, quilts or glyphs"
        load_exactly(policy, path, loading.convert, "flow model", fix)
        return policy.requires_grad_(True)

    def outline(self, path: Path, shape: FlowShape, *, trust_remote_code: bool) -> FlowPolicy:
        return FlowPolicy(shape)

    def config(self, model: FlowPolicy) -> dict[str, Any]:
        shape = model.shape
        sizes = {name: getattr(shape, name) for name in ("prompt_vocabulary", "prompt_length", "width", "layers")}
        return {"model_type": FLOW, "state": list(shape.state_shape), **sizes, "vocab_size": shape.vocabulary_size}

    def set_up(self, model: FlowPolicy, settings: Mapping[str, Any]) -> None:
        if settings["denoise"] is not None:
            model.denoise = settings["denoise"]


def flow_shape(config: Mapping[str, Any]) -> FlowShape:
    """The sizes in a configuration. KeyError or ValueError for an invalid one."""
    state = config["state"]
    if not isinstance(state, list) or not 1 <= len(state) <= 3 or any(type(n) is not int or n < 1 for n in state):
        raise ValueError(f"state is {state}: it must be a list of one to three sizes, such as [3, 8, 8]")
    words, prompt_length, width, layers = (
        whole(config, name, low=1, high=SIZE) for name in ("prompt_vocabulary", "prompt_length", "width", "layers")
    )
    if layers > MOST_STEPS or max(*state, prompt_length * words) > SIZE:
        raise ValueError(f"layers is {layers} and state is {state}: too large for a flow model of this format")
    return FlowShape(
        vocabulary_size=END + 1 + words,
        layers=layers,
        state_shape=tuple(state),
        prompt_vocabulary=words,
        prompt_length=prompt_length,
        width=width,
    )
