"""Resolves the setting `auto` for device and dtype on this machine, and the number of lanes."""

from dataclasses import replace

import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.core import GroupwiseError
from groupwise.models import base_directory, device_named, device_of, find_model, kind_of
from groupwise.models.device_names import AUTO


def find_device(machine: Machine) -> torch.device:
    """The device of a machine. `Usage` for an unknown name, `MissingRequirement` if this machine lacks it."""
    return device_named(machine.device, "machine.device")


def dtype_of(name: str, device: str, model: str) -> str:
    """The name of a dtype; for `auto`, `bfloat16` if device and kind of `model` compute in it, else `float32`.

    >>> dtype_of("auto", "cpu", "calculator"), dtype_of("float64", "cpu", "calculator")
    ('float32', 'float64')
    """
    if name != AUTO:
        return name
    on_gpu = device_of(device).startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if on_gpu and _in_bfloat16(model) else "float32"


def _in_bfloat16(model: str) -> bool:
    """Whether models of this one's kind compute in bfloat16. True for a missing model, which the checks report."""
    try:
        return kind_of(base_directory(find_model(model, weights=False))).auto_dtype_is_bfloat16
    except GroupwiseError:
        return True


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with a concrete dtype and number of lanes.

    Its device may remain `auto`, so that a run continues on another machine.
    """
    machine, cluster = recipe.machine, recipe.cluster
    machine = replace(machine, dtype=dtype_of(machine.dtype, machine.device, recipe.model))
    return replace(
        recipe, machine=machine, cluster=replace(cluster, reduction_lanes=cluster.reduction_lanes or cluster.ranks)
    )


def device_label(device: torch.device) -> str:
    """The name of a device in messages and in run.json; for a GPU with its model."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
