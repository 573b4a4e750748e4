"""Reads and writes the directory of a masked model: config.json, model.safetensors, and the tokenizer."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from groupwise.data import BadData
from groupwise.models.fields import whole
from groupwise.models.masked.policy import MaskedPolicy
from groupwise.models.masked.predictor import MaskedShape
from groupwise.models.masked.unmask import MOST_UNMASKING_STEPS, Unmask
from groupwise.models.weights import header, refuse_types, tensors, weight_files

__all__ = ["is_masked", "masked_config", "masked_shape", "read_masked"]

MASKED = "groupwise_masked"
SIZE = 1 << 14
"""The largest width, number of cells and vocabulary."""
NAMES = ("cells", "symbols", "words", "places", "width", "layers", "heads")


def is_masked(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a masked model in the format of this package."""
    return config.get("model_type") == MASKED


def masked_shape(config: Mapping[str, Any]) -> MaskedShape:
    """The sizes in a configuration. KeyError or ValueError for an invalid one."""
    sizes = {name: whole(config, name, low=1, high=SIZE) for name in NAMES}
    if sizes["layers"] > MOST_UNMASKING_STEPS or sizes["places"] * sizes["words"] > SIZE:
        raise ValueError(f"layers is {sizes['layers']} and words is {sizes['words']}: too large for this format")
    if sizes["width"] % sizes["heads"]:
        raise ValueError(f"width is {sizes['width']}: it must be a multiple of heads, {sizes['heads']}")
    unmask_of(config)
    return MaskedShape(vocabulary=MOST_UNMASKING_STEPS + 1 + 2 * sizes["symbols"] + sizes["words"], **sizes)


def masked_config(model: MaskedPolicy) -> dict[str, Any]:
    """The configuration of a masked model and its schedule, for config.json."""
    sizes = {name: getattr(model.shape, name) for name in NAMES}
    return {"model_type": MASKED, **sizes, "unmask": asdict(model.unmask), "vocab_size": model.shape.vocabulary}


def unmask_of(config: Mapping[str, Any]) -> Unmask:
    """The settings of the stored schedule. ValueError if they are not complete, or invalid."""
    stored, names = config["unmask"], asdict(Unmask())
    types = {name: type(value) for name, value in names.items()}
    if not isinstance(stored, dict) or {name: type(value) for name, value in stored.items()} != types:
        raise ValueError(f"unmask is {stored!r:.200}: it must have the fields {', '.join(names)}")
    return Unmask(**stored)


def read_masked(
    path: Path, config: Mapping[str, Any], shape: MaskedShape, *, dtype: torch.dtype, device: torch.device | str
) -> MaskedPolicy:
    """Load a masked model with its schedule. BadData if the tensors are not those of its config.json."""
    if not (files := weight_files(path)):
        raise BadData(f"the masked model in {path} has no weights", fix="train it first, or use the model beads")
    policy = MaskedPolicy(shape, unmask_of(config))
    headers = {file: header(file) for file in files}
    stored = {name: tuple(x.shape) for names in headers.values() for name, x in names.items()}
    expected = {name: tuple(p.shape) for name, p in policy.named_parameters()}
    if stored != expected:
        names = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        what = f"the tensors in {path} are not those that its config.json describes"
        raise BadData(
            what, evidence=f"missing, unknown or of another shape: {', '.join(names[:4])}", fix="copy it again"
        )
    weights = {}
    for file, names in headers.items():
        refuse_types(file, names)
        weights |= tensors(file, names, lambda tensor: tensor.to(device, dtype))
    policy.load_state_dict(weights, assign=True)
    return policy.to(device).requires_grad_(True)
