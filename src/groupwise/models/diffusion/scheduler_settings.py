"""The settings of a pipeline's scheduler: which are refused, and the shift of its times by the size of a picture."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.core import BadData
from groupwise.models.json_fields import flag, real, short, whole
from groupwise.models.model_json_files import read_json

__all__ = ["refuse_scheduler", "shift_of_tokens"]

NOT_ODE = ("stochastic_sampling", "invert_sigmas")
"""Settings with which a step without noise is not the ODE's."""
STEPS = 1 << 20
"""The most steps of training, and the most tokens of a picture, in a configuration."""
DEFAULTS = {
    "num_train_timesteps": 1000, "shift": 1.0, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}  # fmt: skip
"""The numbers of diffusers for settings that a file leaves out."""
SHIFT = 100.0
"""The largest absolute shift: times are shifted by its exponential."""


def refuse_scheduler(path: Path) -> None:
    """BadData if a step of the scheduler in a pipeline's directory is none of the ODE, or its numbers are invalid."""
    file = path / "scheduler" / "scheduler_config.json"
    config = read_json(file)
    if settings := [name for name in NOT_ODE if config.get(name)]:
        what = "the steps of this scheduler are not those of the ODE, to which the noise of a method is added"
        raise BadData(
            what, evidence=f"{file}: {', '.join(settings)}", fix=f"set {settings[0]} to false, if the model allows it"
        )
    try:
        check_numbers(config)
    except ValueError as error:
        what = f"{file} does not describe the times of a scheduler"
        raise BadData(what, evidence=str(error), fix="fetch the file again") from error


def check_numbers(config: Mapping[str, Any]) -> None:
    """ValueError for a number of the times that is invalid. Those that are absent have diffusers' defaults."""
    times: dict[str, Any] = {**DEFAULTS, **config}  # diffusers has no default for null
    whole(times, "num_train_timesteps", low=1, high=STEPS)
    real(times, "shift", low=1 / SHIFT, high=SHIFT)
    if config.get("shift_terminal") is not None:
        real(config, "shift_terminal", low=0, high=0.999)
    if (kind := config.get("time_shift_type", "exponential")) not in ("exponential", "linear"):
        raise ValueError(f"time_shift_type is {short(kind)}: it must be exponential or linear")
    if not flag(config, "use_dynamic_shifting"):
        return
    real(times, "base_shift", low=-SHIFT, high=SHIFT)
    real(times, "max_shift", low=-SHIFT, high=SHIFT)
    base, most = (whole(times, name, low=1, high=STEPS) for name in ("base_image_seq_len", "max_image_seq_len"))
    if base >= most:
        raise ValueError(f"base_image_seq_len is {base}: it must be below max_image_seq_len, {most}")


def shift_of_tokens(config: Any, tokens: int) -> float:
    """The shift of a scheduler with dynamic shifting: linear in the number of the transformer's tokens of a picture."""
    rise = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    shift = config.base_shift + rise * (tokens - config.base_image_seq_len)
    if not math.isfinite(shift) or abs(shift) > SHIFT:
        what = f"the scheduler of this pipeline shifts the times of a picture of {tokens} tokens by {shift:.3g}"
        raise BadData(what, evidence=f"the largest shift is {SHIFT:g}", fix="use another pipeline.picture_size")
    return shift
