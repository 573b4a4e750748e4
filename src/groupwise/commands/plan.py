"""`groupwise plan`: the memory and the seconds of a run on given machines, before anything is loaded or paid for."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from groupwise.commands.plan_table import (
    machines_table,
    pipeline_plan_lines,
    plan_lines,
    trial_access,
    trial_commands,
    trial_settings,
)
from groupwise.config.model_dependent_defaults import starting_point
from groupwise.config.packaged import named_recipe
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.stored_quantization import with_stored_quantization
from groupwise.config.user_code import Permissions, UserCode, load_use
from groupwise.core import Storage, Usage, terminal_width, visible, wrapped
from groupwise.data import all_problems
from groupwise.models import base_directory, find_model, kind_of
from groupwise.planning.device_splits import obstacle
from groupwise.planning.draw_simulation_timeline import timeline_svg
from groupwise.planning.gpu_cards import named_machines
from groupwise.planning.machines import PlannedMachines, on_machines, read_machines
from groupwise.planning.pipeline_memory import pipeline_memory
from groupwise.planning.plan import RunPlan, plan_run
from groupwise.planning.plan_calibration import calibrated
from groupwise.planning.read_model_shape import planned_shape
from groupwise.planning.this_machine import this_machine
from groupwise.report.report import existing_run
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import read_inputs


def plan(
    file: str | None,
    overrides: Sequence[tuple[str, str]],
    allowed: Permissions,
    *,
    recipe_name: str | None,
    machines: str,
    rates: str,
    svg: str,
    every_split: bool,
    as_json: bool,
) -> int:
    """Print the plan of a recipe on machines. Returns 2 if it does not fit in their memory, else 0.

    `machines` is a file, or a card's name such as `8xa100`, or several of them with commas; empty means this machine.
    `rates` is a finished run by whose seconds the plan's are calibrated. `every_split`: also splits of the devices that
    this version does not run.
    """
    refuse_card(overrides)
    use, available = load_use(allowed), [find_machines(text) for text in names_of_machines(machines)]
    start = starting_point(named_recipe(file, recipe_name), overrides)
    recipe = read_recipe(start.source, start.overrides, use)
    directory = find_model(recipe.model, weights=False)
    if memory_plan := MEMORY_PLANS.get(kind_of(base_directory(directory)).name):
        if svg or rates or len(available) > 1:
            fix = "leave out --svg and --rates, and name one machine"
            raise Usage("the seconds of a pipeline's run are not modelled", fix=fix)
        one = available[0] if available else this_machine(recipe, None, lambda: 0)
        return memory_plan(on_machines(recipe, one), directory, one, as_json=as_json)
    shape, prompt = planned_shape(directory), cache(lambda: longest_prompt(recipe, use))
    recipe = with_stored_quantization(recipe, directory)
    available = available or [this_machine(recipe, shape, prompt)]
    if rates:
        available = [with_rates_of(rates, one, use) for one in available]
    plans = [
        plan_run(recipe, shape, one, one.assumed_lengths.prompt or prompt(), every=every_split) for one in available
    ]
    if len(plans) > 1:
        return compare_machines(plans, svg=svg, as_json=as_json)
    (planned,) = plans
    if svg and planned.simulated_placements:
        write_svg(planned, Path(svg))
    if as_json:
        print(json.dumps(plan_json(planned), indent=1))
    else:
        show(plan_lines(planned))
    return 0 if planned.simulated_placements else Usage.code


def show(lines: Sequence[str]) -> None:
    """Print a plan; prose is wrapped to the terminal."""
    print(wrapped(visible("\n".join(lines), lines=True), terminal_width(sys.stdout, 0)))


def refuse_card(overrides: Sequence[tuple[str, str]]) -> None:
    """`Usage` for `--machine a100`: the field `machine` of a recipe is a table."""
    card = next((value for path, value in overrides if path == "machine" and not value.lstrip().startswith("{")), "")
    if card:
        raise Usage("--machine sets a recipe's table", evidence=f"--machine {card}", fix=f"write --machines {card}")


def names_of_machines(text: str) -> list[str]:
    """The machines of `--machines`: a file, or names with commas; none without one."""
    return [text] if Path(text).is_file() else [name.strip() for name in text.split(",") if name.strip()]


def find_machines(name: str) -> PlannedMachines:
    """The machines of a file, or of a card's name."""
    return read_machines(name) if name.endswith(".toml") or Path(name).is_file() else named_machines(name)


def compare_machines(plans: Sequence[RunPlan], *, svg: str, as_json: bool) -> int:
    """Print a line for each machine: memory, seconds and the best split. Returns 2 if the run fits on none."""
    if svg:
        raise Usage("--svg draws the plan of one machine", fix="name one machine, or leave out --svg")
    if as_json:
        print(json.dumps({plan.machines.name: plan_json(plan) for plan in plans}, indent=1))
    else:
        show(machines_table(plans))
    return 0 if any(plan.simulated_placements for plan in plans) else Usage.code


def plan_of_pipeline(recipe: Recipe, directory: Path, machines: PlannedMachines, *, as_json: bool) -> int:
    """Print the memory of a run with a pipeline, which one device does alone. Its seconds are not modelled."""
    memory = pipeline_memory(recipe, directory)
    fits = memory.peak <= machines.memory
    if as_json:
        parts = {phase: dict(memory.during(phase).parts) for phase in memory.phase_bytes}
        print(
            json.dumps(
                {"weights": memory.parameter_count, "peak": memory.peak, "memory": parts, "fits": fits}, indent=1
            )
        )
    else:
        show(pipeline_plan_lines(recipe, memory, machines))
    return 0 if fits else Usage.code


MEMORY_PLANS = {"pipeline": plan_of_pipeline}
"""Kinds of models whose memory alone is planned, not their seconds."""


def with_rates_of(run: str, machines: PlannedMachines, use: UserCode) -> PlannedMachines:
    """The machines, calibrated by the seconds of a finished run."""
    directory = existing_run(run).run_directory
    recipe = read_recipe(RunLayout(directory).recipe, (), use)
    shape = planned_shape(find_model(recipe.model, weights=False))
    return calibrated(machines, directory, recipe, shape, longest_prompt(recipe, use))


def longest_prompt(recipe: Recipe, use: UserCode) -> int:
    """The longest prompt of the recipe's task, in tokens."""
    return max(len(prompt.token_ids) for prompt in all_problems(read_inputs(recipe, use).task))


def write_svg(planned: RunPlan, path: Path) -> None:
    """Write the timeline of the best trial as SVG. `Storage` if the file cannot be written."""
    best = planned.best
    title = f"{best.placement.label}, staleness {best.max_staleness}: two iterations of {best.seconds:,.1f} s"
    try:
        path.write_text(timeline_svg(best.simulation, best.warm, title), encoding="utf-8")
    except OSError as error:
        raise Storage(f"{path} cannot be written", evidence=str(error.strerror), fix="name another file") from error


def plan_json(planned: RunPlan) -> dict[str, Any]:
    """The plan as JSON: bytes and seconds."""
    memories = [
        {"placement": placement.label, "process": name, "peak": memory.peak, "parts": dict(memory.parts)}
        for placement in planned.placements
        for name, memory in planned.memories(placement).items()
    ]
    trials = [
        {
            "max_staleness": trial.max_staleness,
            **asdict(trial.placement),
            "engines": trial.placement.engines,
            "not_runnable": obstacle(trial.placement, planned.recipe, planned.model_shape),
            "settings": dict(trial_settings(planned, trial)),
            "commands": trial_commands(planned, trial),
            "access": trial_access(planned, trial),
            "rows": trial.simulation_setup.max_num_seqs,
            "sampling": trial.sampling(),
            "learning": trial.learning,
            "publishing": trial.simulation_setup.publish_seconds,
            "seconds": trial.seconds,
            "tokens_per_second": trial.rate,
            "oldest": trial.simulation.largest_staleness,
        }
        for trial in planned.simulated_placements
    ]
    changes = None if planned.recipe_changes is None else dict(planned.recipe_changes)
    numbers = {"weights": planned.weights, "memory": memories, "trials": trials}
    return {**numbers, "fits": bool(trials), "changes": changes, "devices": planned.smallest_device_count}
