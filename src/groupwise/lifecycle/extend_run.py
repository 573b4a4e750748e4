"""Extends a run to more iterations. Learning-rate and other schedules then use the new total."""

import tomllib
from dataclasses import replace

import tomli_w

from groupwise.core import Usage, counted
from groupwise.runs.atomic_writes import DISK, FileSystemOperations, delete_directory, storage_errors
from groupwise.runs.checkpoints import finished_checkpoints
from groupwise.runs.open_run import OpenRun
from groupwise.runs.run_layout import RunLayout


def extend(run: OpenRun, iterations: int, disk: FileSystemOperations = DISK) -> OpenRun:
    """Extend a run: write the larger number of iterations, which its recipe allows, to recipe.toml and run.json.

    The loop records the seam under `changes` when it continues. The model of the shorter run moves to `models/`.
    Repeating it with the same number changes nothing. Raises `Usage` for fewer iterations.
    """
    info = run.info
    if iterations < info.iterations:
        what = f"{run.path} already has {counted(info.iterations, 'iteration')}: it cannot be extended to {iterations}"
        raise Usage(what, fix=f"set --iterations above {info.iterations}")
    if iterations > info.iterations:
        park_model(run.layout, disk)
    new = replace(info, recipe=with_iterations(info.recipe, iterations), iterations=iterations)
    return run.changed(new, with_iterations(run.recipe_text, iterations), disk=disk)


def park_model(layout: RunLayout, disk: FileSystemOperations = DISK) -> None:
    """Move the finished model to `models/`, since training continues; delete it if `models/` has a copy already."""
    run, model, checkpoints = layout.run_directory, layout.model, finished_checkpoints(layout.checkpoints)
    if not model.is_dir() or not checkpoints:
        return
    target = layout.model_at(checkpoints[-1][0])  # a solved run ends before its last iteration
    with storage_errors("the model", run):
        if target.is_dir():
            delete_directory(model, disk)
            return
        if not target.parent.is_dir():
            disk.mkdir(target.parent)
        disk.replace(model, target)
        disk.sync(target.parent)
        disk.sync(run)


def with_iterations(text: str, iterations: int) -> str:
    """A recipe in TOML with another number of iterations.

    >>> with_iterations("seed = 1", 9)
    'seed = 1\\niterations = 9\\n'
    """
    return tomli_w.dumps(tomllib.loads(text) | {"iterations": iterations})
