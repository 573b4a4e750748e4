"""Finds and exports the models of a run: of the finished run, of a checkpoint, of the best checkpoint."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, GroupwiseError, Usage, visible
from groupwise.learner.update import restore_policy
from groupwise.lifecycle.resume_checks import check_model_code
from groupwise.models import Model, SequenceClassifier, find_model, has_adapter, read_model, read_tokenizer, write_model
from groupwise.models.lora import name_base
from groupwise.models.model_directories import base_name
from groupwise.models.model_json_files import ADAPTER
from groupwise.runs.atomic_writes import (
    DISK,
    REPEAT,
    FileSystemOperations,
    remove_dead_drafts,
    storage_errors,
    write_directory,
)
from groupwise.runs.best_checkpoint import best_iteration, describe_best, held_out_values
from groupwise.runs.checkpoints import Checkpoint, finished_checkpoints, newest_checkpoint, read_checkpoint
from groupwise.runs.json_lines import read_lines
from groupwise.runs.next_command import recorded_code, resume_command
from groupwise.runs.phase_directories import finished_run, phase_directories, runs_in
from groupwise.runs.run_info import RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import DTYPES, as_trained, write_trained

BEST = "best"
"""The value of `at` that means the best checkpoint."""
NO_CODE = UserCode()
At = int | str | None
"""Which model of a run: an iteration, BEST, or None for the finished model (else the newest checkpoint)."""


@dataclass(frozen=True, slots=True)
class RunModelLocation:
    """A model of a run: its `model_directory` (of a model or an adapter), or None if it is still inside a `checkpoint`.

    `iteration` is None for the finished model. `best_by` says by which figures the best one was chosen.
    """

    run_layout: RunLayout
    iteration: int | None
    model_directory: Path | None
    checkpoint: Path | None
    best_by: str = ""

    def __str__(self) -> str:
        best = f", the best: {self.best_by}" if self.best_by else ""
        if self.iteration is None:
            return f"the finished model{best}"
        return f"the model of iteration {self.iteration} of {RunInfo.read(self.run_layout).iterations}{best}"


def find_run_model(run: Path, at: At = None) -> RunModelLocation:
    """A model of a run, or of the last finished phase of a run. `BadData` if there is none at this iteration."""
    if not (at is None or at == BEST or (isinstance(at, int) and not isinstance(at, bool))):
        raise Usage(f"{at!r} does not name a checkpoint of a run", fix=f"give the number of its iteration, or {BEST}")
    if at is not None and phase_directories(run):
        fix = "name the directory of one phase, such as RUN/1-NAME"
        raise Usage(f"an iteration of {run} is ambiguous: it has phases, and each counts its own iterations", fix=fix)
    layout = RunLayout(finished_run(run) or runs_in(run)[-1])
    if at is None and layout.model.is_dir():
        return RunModelLocation(layout, None, layout.model, None)
    directories = {int(path.name): path for path in layout.models.glob("*") if path.name.isdecimal()}
    checkpoints = {i: path for i, parked, path in finished_checkpoints(layout.checkpoints) if not parked}
    best = ""
    if at == BEST:
        iteration, best = best_checkpoint(layout)
    else:
        iteration = _newest(layout) if at is None else int(at)
    if layout.model.is_dir() and iteration == max(checkpoints, default=None):
        return RunModelLocation(layout, None, layout.model, None, best)
    if iteration not in directories | checkpoints:
        known = ", ".join(map(str, sorted(directories.keys() | checkpoints.keys())))
        raise BadData(
            f"{layout.run_directory} has no model of iteration {iteration}",
            evidence=f"it has models of: {known or 'no iteration'}",
            fix="name one of these; save.keep and save.export_every set how many a run keeps",
        )
    return RunModelLocation(layout, iteration, directories.get(iteration), checkpoints.get(iteration), best)


def best_checkpoint(layout: RunLayout) -> tuple[int, str]:
    """The iteration of the best checkpoint by `evaluate.best_metric`, and its figures. `BadData` without one."""
    recipe = recipe_of(layout)
    checkpoints = [i for i, parked, _ in finished_checkpoints(layout.checkpoints) if not parked]
    values = held_out_values(read_lines(layout.metrics), recipe.evaluate.best_metric)
    best = best_iteration(values, checkpoints)
    if best is None:
        raise BadData(
            f"{layout.run_directory} has no best checkpoint, since none of its checkpoints was evaluated",
            evidence=f"checkpoints: {', '.join(map(str, checkpoints)) or 'none'}",
            fix="name an iteration: --at K; for the next run make evaluate.every a multiple of save.every",
        )
    figures, highest = describe_best(values, best, recipe.evaluate.best_metric), best_iteration(values, values)
    if highest is not None and values[highest] > values[best]:
        figures += f"; iteration {highest} was better, and has no checkpoint"
    return best, figures


def model_directory(model: RunModelLocation, use: UserCode, notify: Callable[[str], None]) -> Path:
    """The directory of a run's model. A checkpoint's model is written to `models/` of the run on first use.

    Passes one line to `notify`, unless it is the model of the finished run.
    """
    directory = model.model_directory
    if directory is None:
        assert model.iteration is not None, "a finished model has a directory"
        directory = model.run_layout.model_at(model.iteration)
        with storage_errors("the model", model.run_layout.run_directory, then=REPEAT):
            directory.parent.mkdir(exist_ok=True)
            with write_directory(directory) as draft:
                write_checkpoint_model(model, draft, use)
    if model.iteration is not None:
        notify(f"{model}: {visible(str(directory))}")
    return directory


def export(
    run: Path, out: Path, at: At = None, dtype: str = "", use: UserCode = NO_CODE, disk: FileSystemOperations = DISK
) -> RunModelLocation:
    """Write a model of a run to the directory `out`, which must not exist. Returns the model that was written.

    `dtype` converts a model's weights, for example to bfloat16. An adapter is written with its tokenizer.
    """
    model = find_run_model(run, at)
    if out.exists():
        raise Usage(f"{out} exists already", fix="name a new directory")
    with storage_errors("the model", out.absolute().parent):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        remove_dead_drafts(out.absolute(), disk)
        with write_directory(out.absolute(), disk) as draft:
            if model.model_directory is None:
                write_checkpoint_model(model, draft, use, dtype)
            elif dtype:
                trained = read_model(model.model_directory, trust_remote_code=use.trust_remote_code)
                tokenizer = read_tokenizer(model.model_directory)
                write_model(_converted(trained, dtype), draft, tokenizer=tokenizer, source=model.model_directory)
            else:
                shutil.copytree(model.model_directory, draft, dirs_exist_ok=True)
                if (draft / ADAPTER).is_file():  # its base may be given relative to its old folder
                    name_base(draft, base_name(model.model_directory))
    return model


def write_checkpoint_model(model: RunModelLocation, path: Path, use: UserCode, dtype: str = "") -> None:
    """Write the model of a checkpoint to a directory, with the files that the finished model has."""
    assert model.checkpoint is not None, "the model is a directory already"
    checkpoint = read_checkpoint(model.checkpoint)
    info, recipe = RunInfo.read(model.run_layout), with_source(recipe_of(model.run_layout), model.run_layout)
    check_model_code(info, recipe, use)
    source = find_model(recipe.model)
    trained = read_model(
        source,
        dtype=DTYPES[recipe.machine.dtype],
        seed=recipe.seed,
        trust_remote_code=use.trust_remote_code,
        quantization=recipe.machine.quantization,
    )
    trained = as_trained(trained, recipe)
    restore_policy(trained, checkpoint.tensors())
    if dtype:
        trained = _converted(trained, dtype)
    write_trained(trained, path, recipe, read_tokenizer(source), info.base_sha256)


def with_source(recipe: Recipe, layout: RunLayout) -> Recipe:
    """The recipe; if its model is gone, with the run's finished model, which has the same shape and tokenizer."""
    try:
        find_model(recipe.model)
    except GroupwiseError:
        finished = layout.model
        if recipe.lora is not None or not finished.is_dir():
            raise
        return replace(recipe, model=str(finished))
    return recipe


def _converted(model: Model, dtype: str) -> Model:
    """Convert a model's weights to another dtype; a reward model's with its adapter. `Usage` for another adapter."""
    if isinstance(model, SequenceClassifier):
        model = model.without_adapter()
    if has_adapter(model):
        fix = "leave out --dtype, or merge it first: groupwise merge"
        raise Usage("the dtype of an adapter cannot be changed", fix=fix)
    return model.to(DTYPES[dtype])


def recipe_of(layout: RunLayout) -> Recipe:
    """The recipe of a run, read without loading the code in the user's files."""
    recipe, problems = read_with_problems(layout.recipe)
    if recipe is None:
        raise problems[0]
    return resolved(recipe)


def _newest(layout: RunLayout) -> int:
    """The iteration of the newest undamaged checkpoint. `BadData` without one."""
    checkpoint: Checkpoint | None = newest_checkpoint(layout)
    if checkpoint is None:
        fix = f"continue it: {resume_command(layout.run_directory, *recorded_code(layout.run_directory))}"
        raise BadData(f"{layout.run_directory} has no model yet, and no checkpoint", fix=fix)
    return checkpoint.iteration
