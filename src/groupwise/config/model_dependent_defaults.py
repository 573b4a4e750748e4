"""Defaults of recipe fields that depend on the model, such as the learning rate."""

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from groupwise.config.parse_toml_values import ValueParser
from groupwise.config.phase_recipes import read_phases
from groupwise.config.resolve_devices import AUTO, device_of, dtype_of
from groupwise.config.toml import (
    DEFAULT,
    CommandLineValue,
    default_method,
    override_value,
    read_toml,
    set_path,
    set_paths,
)
from groupwise.core import GroupwiseError
from groupwise.data import Sampling, TaskSettings
from groupwise.models import base_directory, find_model, kind_of, outline, read_shape
from groupwise.runs.phase_directories import KEY, trained_model

LEARNING_RATES = ((10_000_000, 2e-4), (1_000_000_000, 1e-5), (math.inf, 1e-6))
"""Default learning rates of full training, as (limit, rate): a rate is for models with fewer weights than the limit."""
LORA_FACTOR = 10
"""The default learning rate of a LoRA adapter, as a multiple of the one of full training."""
LONGEST: int = Sampling().max_tokens
CPU_BUDGET = 128
"""The largest default budget of an answer, in tokens, of training on a CPU without a recipe file."""
LR, BUDGET, DTYPE, TARGETS = "optimizer.lr", "sampling.max_tokens", "machine.dtype", "lora.target_modules"


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """A recipe before it is parsed: its file or text, the fields that override it, and a note on defaults in use."""

    source: str | Path
    overrides: tuple[tuple[str, Any], ...]
    defaults_note: str = ""


def starting_point(
    source: str | Path | None,
    fields: Iterable[tuple[str, Any]] = (),
    *,
    trust_remote_code: bool = False,
    train: bool = True,
) -> RecipeSource:
    """Complete a recipe and the user's overrides by the defaults for its model.

    `source` is a TOML file, TOML text, or None. Without one the packaged recipe holds for its own model and
    task. For any other model or task the method has its paper's constants, and the learning rate follows from the
    model's size (`LEARNING_RATES`). The budget of an answer is at most half of the model's positions, and to `train` on
    a CPU at most `CPU_BUDGET`. A model that cannot be read has no such defaults: reading it again gives the error.

    >>> start = starting_point(None, [("task", "big_sums")])
    >>> start.source, start.overrides
    ('method = "gspo"', (('optimizer.lr', 0.0002), ('sampling.max_tokens', 64), ('task', 'big_sums')))
    >>> print(start.defaults_note)
    defaults: method gspo, optimizer.lr 0.0002 (223,520 weights), sampling.max_tokens 64 (half of the model's 128)
    """
    given = tuple(fields)
    if source is None and is_packaged(tables_of("", given)):
        return RecipeSource(DEFAULT, given)
    without_file = source is None
    source = f'method = "{default_method()}"' if source is None else source
    data = tables_of(source, given)
    bound = CPU_BUDGET if without_file and train and on_cpu(data) else LONGEST
    defaults, reasons = model_defaults(data, trust_remote_code=trust_remote_code, rate=without_file, bound=bound)
    if without_file and "method" not in dict(given):
        reasons.insert(0, f"method {default_method()}")
    note = f"defaults: {', '.join(reasons)}" if reasons else ""
    return RecipeSource(source, (*defaults.items(), *given), note)


def complete_phases(data: Mapping[str, Any], *, trust_remote_code: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Add the defaults for its model to each phase's table. Returns the recipe, and a note on each phase with defaults.

    They are the budget of an answer and the dtype, which then stay if another machine continues the run. The model of
    an earlier phase does not exist yet: the model that it starts from has the same shape.
    """
    complete, notes = deepcopy(dict(data)), []
    models: dict[str, str] = {}
    for i, phase in enumerate(read_phases(data)):
        tables = merged(phase.common_recipe, phase.changes)
        models[phase.name] = tables["model"] = models.get(phase.starts_from) or tables.get("model", "calculator")
        defaults, reasons = model_defaults(tables, trust_remote_code=trust_remote_code, rate=False)
        machine = tables.get("machine", {})
        if isinstance(machine, Mapping) and machine.get("dtype", AUTO) == AUTO:
            defaults |= {DTYPE: dtype_of(AUTO, str(machine.get("device", AUTO)), str(tables["model"]))}
        for path, value in defaults.items():
            set_path(complete, f"{KEY}.{i}.{path}", value)
        if reasons:
            notes.append(f"defaults of phase {phase.name}: {', '.join(reasons)}")
    return complete, notes


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables, and the tables in them: a value of `above` replaces the one in `below`.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4})
    {'a': {'b': 3, 'c': 2}, 'd': 4}
    """
    both = dict(below)
    for key, value in above.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


def on_cpu(data: Mapping[str, Any]) -> bool:
    """Whether a recipe's tables train on a CPU."""
    machine = data.get("machine", {})
    machine = machine.plain if isinstance(machine, CommandLineValue) else machine
    return device_of(str(machine.get("device", AUTO)) if isinstance(machine, Mapping) else AUTO) == "cpu"


def model_defaults(
    data: Mapping[str, Any], *, trust_remote_code: bool, rate: bool, bound: int = LONGEST
) -> tuple[dict[str, Any], list[str]]:
    """The defaults for a recipe's model (answer length, learning rate), and a reason for each, as text.

    They are the budget of an answer (at most `bound`), the targets of an adapter of a pipeline and, with `rate`, the
    learning rate. A field that the tables set has none.
    """
    wanted = [name for name in (LR, BUDGET, TARGETS) if not is_set(data, name) and (rate or name != LR)]
    defaults: dict[str, Any] = {}
    reasons: list[str] = []
    if not wanted:
        return defaults, reasons
    try:
        directory = find_model(trained_model(str(data.get("model", "calculator"))), weights=False)
        if LR in wanted:
            weights = sum(p.numel() for p in outline(directory, trust_remote_code=trust_remote_code).parameters())
            adapter = is_set(data, "lora") or base_directory(directory) != directory
            defaults[LR] = learning_rate(weights, adapter=adapter)
            reasons.append(f"{LR} {defaults[LR]} ({weights:,} weights{', LoRA' if adapter else ''})")
        positions = read_shape(directory, trust_remote_code=trust_remote_code).max_positions
        if BUDGET in wanted and min(positions // 2, bound) < LONGEST:
            defaults[BUDGET] = max(1, min(positions // 2, bound))
            reason = f"half of the model's {positions}" if positions // 2 <= bound else "on a CPU"
            reasons.append(f"{BUDGET} {defaults[BUDGET]} ({reason})")
        if TARGETS in wanted and is_set(data, "lora") and (targets := kind_of(directory).default_adapter_targets):
            defaults[TARGETS] = list(targets)
            reasons.append(f"{TARGETS} (the pipeline's attention)")
    except GroupwiseError:
        pass
    return defaults, reasons


def learning_rate(weights: int, *, adapter: bool) -> float:
    """The default learning rate of a model with this number of weights, or of a LoRA adapter on such a model.

    >>> learning_rate(494_032_768, adapter=False), learning_rate(494_032_768, adapter=True)
    (1e-05, 0.0001)
    """
    rate = next(rate for below, rate in LEARNING_RATES if weights < below)
    return float(f"{rate * (LORA_FACTOR if adapter else 1):.1g}")


def is_packaged(data: Mapping[str, Any]) -> bool:
    """Whether a recipe's tables set no other model and no other task than the packaged recipe."""
    packaged = read_toml(DEFAULT)
    chosen = {**packaged, **data}
    return packaged["model"] == str(chosen["model"]) and task_of(packaged["task"]) == task_of(chosen["task"])


def task_of(data: Any) -> TaskSettings:
    """The task that a recipe's data names; a stand-in for an invalid one, and for one in a user's file."""
    return ValueParser().value(data, TaskSettings, MISSING, "task")


def is_set(data: Mapping[str, Any], path: str) -> bool:
    """Whether a recipe's tables set the field at a dotted path. The value `"none"` counts as not set."""
    value: Any = data
    for key in path.split("."):
        value = value.plain if isinstance(value, CommandLineValue) else value
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return str(value) != "none"


def tables_of(source: str | Path, fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A recipe's TOML data, after the overrides, which are given by dotted path."""
    data = read_toml(source)
    set_paths(data, [(path, override_value(value)) for path, value in fields])
    return data
