"""Devices by name: the choice of `auto`, and a check that this machine has a device."""

import torch

from groupwise.core import MissingRequirement, Usage

__all__ = ["device_named", "device_of"]

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


def device_named(name: str, field: str) -> torch.device:
    """The device in a field of the recipe. `Usage` for an unknown name, `MissingRequirement` if this machine lacks it.

    >>> device_named("cpu", "machine.device")
    device(type='cpu')
    """
    name = device_of(name)
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise Usage(f"no device is called {name!r}", fix=f"use cpu or cuda, or leave out {field}")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Usage(
            f"{name!r} is not a device", evidence=str(error).partition("\n")[0], fix="use cpu or cuda"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise MissingRequirement(
            "this machine has no such CUDA device" if count else "this machine has no CUDA device",
            evidence=f"{field} = {name!r}, devices {count}",
            fix=f"use a number below {count}, such as --{field} cuda:0" if count else f"use --{field} cpu",
        )
    return device
