"""Extends a run to more iterations. Learning-rate and other schedules then use the new total."""

import tomllib
from dataclasses import replace
from pathlib import Path

import tomli_w

from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import Use
from groupwise.core import Usage
from groupwise.runs.checkpoints import finished_checkpoints
from groupwise.runs.disk import DISK, Disk, delete_directory, storage_errors, write_file
from groupwise.runs.info import RunInfo
from groupwise.runs.info_file import write_info
from groupwise.runs.layout import RunLayout
from groupwise.runs.phase_directories import phase_directories


def extend(run: Path, iterations: int, use: Use, disk: Disk = DISK) -> None:
    """Extend a run: write the larger number of iterations to recipe.toml and run.json. The caller holds the lock.

    The loop records the seam under `changes` when it continues. The model of the shorter run moves to `models/`.
    Repeating it with the same number changes nothing. Raises `Usage` for fewer iterations.
    """
    if phases := phase_directories(run):
        fix = f"extend one phase, such as: groupwise resume {phases[-1]} --iterations {iterations}"
        raise Usage(f"{run} has phases, and each has its own number of iterations", fix=fix)
    info, path = RunInfo.read(run), RunLayout(run).recipe
    if iterations < info.iterations:
        what = f"{run} already has {info.iterations} iterations: it cannot be extended to {iterations}"
        raise Usage(what, fix=f"set --iterations above {info.iterations}")
    read_recipe(path, [("iterations", str(iterations))], use)  # raises if the recipe does not allow the new number
    if iterations > info.iterations:
        park_model(run, disk)
    with storage_errors(path.name, run):
        write_file(path, with_iterations(path.read_text(encoding="utf-8"), iterations).encode(), disk)
    info = replace(info, recipe=with_iterations(info.recipe, iterations), iterations=iterations)
    write_info(run, info, disk=disk)


def park_model(run: Path, disk: Disk = DISK) -> None:
    """Move the finished model to `models/`, since training continues; delete it if `models/` has a copy already."""
    model, checkpoints = RunLayout(run).model, finished_checkpoints(RunLayout(run).checkpoints)
    if not model.is_dir() or not checkpoints:
        return
    target = RunLayout(run).model_at(checkpoints[-1][0])  # a solved run ends before its last iteration
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
