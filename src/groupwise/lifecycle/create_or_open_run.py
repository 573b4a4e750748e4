"""Makes a directory a run, or opens a run again to continue it."""

import asyncio
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.checks.check_by_model_kind import kind_errors
from groupwise.checks.check_flow import unfinished_pictures
from groupwise.checks.check_inputs import check_inputs
from groupwise.checks.check_method import dry_run
from groupwise.checks.check_result import CheckResult
from groupwise.cluster.check_launch import check_launch
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_run_recipe, write_for
from groupwise.config.resolve_devices import device_of, resolved
from groupwise.config.user_code import UserCode
from groupwise.core import Storage, raise_all
from groupwise.data import all_problems
from groupwise.engines import Fleet, Native
from groupwise.lifecycle.extend_run import extend
from groupwise.lifecycle.resume_checks import (
    check_base,
    check_data,
    check_given_models,
    check_model_code,
    data_record,
    identity,
    side_model_hashes,
)
from groupwise.lifecycle.run_info import describe_run, movable
from groupwise.models import DecoderShape, find_model, read_shape
from groupwise.planning.cpu_run_duration import duration_lines, measured_rates, run_duration
from groupwise.runs.checkpoints import RunLock, finished_checkpoints
from groupwise.runs.json_lines import read_lines
from groupwise.runs.open_run import OpenRun, start_run
from groupwise.runs.phase_directories import earlier_phases, phases_with
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunInputs, RunObjects, build


def directory_name(task: str) -> str:
    """A task's name as part of a directory name.

    >>> directory_name("datasets:openai/gsm8k:main@train"), directory_name("data/sums.v2.jsonl")
    ('gsm8k-main', 'sums.v2')
    """
    return re.sub(r"[^\w.-]+", "-", Path(task.partition("@")[0]).stem).strip("-")


def read_checked(recipe: Recipe, use: UserCode, notify: Callable[[str], None]) -> RunInputs:
    """Read and check the inputs of a run. Raises all errors of the recipe as one; `notify` gets notes for the user."""
    checked = CheckResult(dry_run(recipe)) + check_inputs(recipe, use)
    raise_all(checked.errors)
    assert checked.inputs is not None, "without an error, all is read"
    for note in (*checked.notes, *time_notes(recipe, checked.inputs, use)):
        notify(note)
    return checked.inputs


def time_notes(recipe: Recipe, inputs: RunInputs, use: UserCode) -> list[str]:
    """Lines about the seconds of a run of one process on a CPU; none for others, whose rates are not known."""
    recipe = resolved(recipe)
    shape = read_shape(find_model(recipe.model), trust_remote_code=use.trust_remote_code)
    alone = type(recipe.engine) is Native and recipe.cluster.ranks == 1 and not recipe.trains_stored_answers
    if not (alone and isinstance(shape, DecoderShape) and device_of(recipe.machine.device) == "cpu"):
        return []
    prompt = max(len(prompt.token_ids) for prompt in all_problems(inputs.task))
    rates = measured_rates(recipe.machine.dtype, recipe.machine.threads)
    return duration_lines(recipe, run_duration(recipe, shape, prompt, len(inputs.task.held_out), rates))


def reach_engines(ready: RunObjects) -> None:
    """Raise the error of engines at addresses that cannot be reached, or are other ones than the run needs."""
    if isinstance(ready.engine, Fleet):
        asyncio.run(ready.engine.reach())


def begin(lock: RunLock, ready: RunObjects, use: UserCode, base: str, command: str) -> OpenRun:
    """Write run.json and recipe.toml, which make an empty directory a run. `base` names its published method."""
    run = lock.layout.run_directory
    phases = phases_with(run)
    earlier = earlier_phases(run, phases)
    text = write_for(earlier, ready.recipe)
    facts = data_record(ready) | ready.adapter | identity(ready.recipe, ready.inputs.templates, text)
    facts |= {"side_models": side_model_hashes(ready.recipe), "device": ready.device}
    info = describe_run(run.name, ready.recipe, base, use, command, facts)
    return start_run(lock, movable(info, earlier), text, phases)


def reopen(
    run: OpenRun, use: UserCode, iterations: int | None = None, ranks: int | None = None, shard: str | None = None,
    launch: str | None = None,
) -> tuple[OpenRun, RunObjects]:  # fmt: skip
    """Build the objects of a run again, to continue it. `BadData` if its data or the files of its models have changed.

    `iterations` extends the run. `ranks`, `shard` and `launch` replace the fields of `cluster` this time. `Storage` for
    a run that has results and no checkpoint to continue from; `Usage` if its recipe was changed and no longer fits its
    model.
    """
    check_continues(run.layout)
    more = [] if iterations is None else [("iterations", str(iterations))]
    recipe = read_run_recipe(run, more, use)  # raises if the recipe does not allow the new number
    if iterations is not None:
        run = extend(run, iterations)
    recipe = with_ranks(recipe, ranks, shard, launch)
    check_launch(recipe)
    check_model_code(run.info, recipe, use)
    shape = read_shape(find_model(recipe.model), trust_remote_code=use.trust_remote_code)
    raise_all([*kind_errors(recipe, shape), *unfinished_pictures(recipe, shape)])
    ready = build(recipe, use)
    check_data(run.info, ready)
    check_base(run.info, ready)
    check_given_models(run.info, recipe)
    return run, ready


def with_ranks(recipe: Recipe, ranks: int | None, shard: str | None, launch: str | None) -> Recipe:
    """The recipe of a run on other ranks. Its lanes stay; `InvalidValue` if the ranks do not divide them."""
    cluster = resolved(recipe).cluster
    chosen: dict[str, Any] = {"ranks": ranks, "shard": shard, "launch": launch}
    return replace(recipe, cluster=replace(cluster, **{name: x for name, x in chosen.items() if x is not None}))


def check_continues(layout: RunLayout) -> None:
    """Raise `Storage` if a run has results but no checkpoint to continue from: it would start from the beginning."""
    if finished_checkpoints(layout.checkpoints):
        return
    done = max((line.get("iteration", 0) for line in read_lines(layout.metrics)), default=0)
    if done or layout.model.is_dir():
        raise Storage(
            f"{layout.run_directory} has no checkpoint to continue from",
            evidence=f"its metrics have {done} iterations, and {layout.checkpoints} has no checkpoint",
            fix=f"restore the checkpoints, or start a new run: groupwise train {shlex.quote(str(layout.recipe))}",
        )
