"""Resolves the setting `auto` for device and dtype on this machine, and the number of lanes."""

from dataclasses import replace

import torch

from groupwise.config.recipe import Machine, Recipe
from groupwise.core import GroupwiseError, MissingRequirement, Usage
from groupwise.models import base_directory, find_model, kind_of

AUTO = "auto"


def device_of(name: str) -> str:
    """The name of a device; for `auto`, `cuda` if torch has a CUDA device, else `cpu`.

    `auto` is never Apple's `mps`: it has no float64, which engine and optimizer sum in.

    >>> device_of("cuda:1")
    'cuda:1'
    """
    if name != AUTO:
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def find_device(machine: Machine) -> torch.device:
    """The device of a machine. `Usage` for an unknown name, `MissingRequirement` if this machine lacks it."""
    name = device_of(machine.device)
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise Usage(f"no device is called {name!r}", fix="use cpu or cuda, or leave out machine.device")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Usage(
            f"{name!r} is not a device", evidence=str(error).partition("\n")[0], fix="use cpu or cuda"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise MissingRequirement(
            "this machine has no such CUDA device" if count else "this machine has no CUDA device",
            evidence=f"machine.device = {name!r}, devices {count}",
            fix=f"use a number below {count}, such as --machine.device cuda:0" if count else "use --machine.device cpu",
        )
    return device


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
