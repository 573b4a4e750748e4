"""Reads and writes the directory of a flow model: config.json, model.safetensors, and the tokenizer of its prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from groupwise.models.flow.denoise import MOST_STEPS
from groupwise.models.flow.policy import FlowPolicy
from groupwise.models.flow.velocity import END, FlowShape
from groupwise.models.json_fields import whole
from groupwise.models.weights import load_exactly

__all__ = ["flow_config", "flow_shape", "is_flow", "read_flow"]

FLOW = "groupwise_flow"
SIZE = 1 << 20
"""The largest width, state and vocabulary."""


def is_flow(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a flow model in the format of this package."""
    return config.get("model_type") == FLOW


def flow_shape(config: Mapping[str, Any]) -> FlowShape:
    """The sizes in a configuration. KeyError or ValueError for an invalid one."""
    state = config["state"]
    if not isinstance(state, list) or not 1 <= len(state) <= 3 or any(type(n) is not int or n < 1 for n in state):
        raise ValueError(f"state is {state}: it must be a list of one to three sizes, such as [3, 8, 8]")
    words, places, width, layers = (
        whole(config, name, low=1, high=SIZE) for name in ("words", "places", "width", "layers")
    )
    if layers > MOST_STEPS or max(*state, places * words) > SIZE:
        raise ValueError(f"layers is {layers} and state is {state}: too large for a flow model of this format")
    return FlowShape(
        vocabulary=END + 1 + words, layers=layers, state=tuple(state), words=words, places=places, width=width
    )


def flow_config(shape: FlowShape) -> dict[str, Any]:
    """The configuration of a flow model, for config.json."""
    sizes = {name: getattr(shape, name) for name in ("words", "places", "width", "layers")}
    return {"model_type": FLOW, "state": list(shape.state), **sizes, "vocab_size": shape.vocabulary}


def read_flow(path: Path, shape: FlowShape, *, dtype: torch.dtype, device: torch.device | str) -> FlowPolicy:
    """Load a flow model with the default denoising. BadData if the tensors are not those of its config.json."""
    policy = FlowPolicy(shape)
    load_exactly(
        policy,
        path,
        lambda tensor: tensor.to(device, dtype),
        "flow model",
        "train it first, or use rings, quilts or glyphs",
    )
    return policy.requires_grad_(True)
