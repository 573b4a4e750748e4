"""Run the trials of studies: one at a time per process, each once, resumable."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from benchmarks.atlas.file_locks import lock
from benchmarks.atlas.first_models import first_model

from groupwise import Permissions, train
from groupwise.api.run import Run
from groupwise.certificates.certificate import commit_of
from groupwise.certificates.code_hash import code_hash
from groupwise.certificates.studies import (
    StudyRun,
    StudyRunResult,
    is_stale,
    packaged_weights,
    read_results,
    write_results,
)
from groupwise.config import recipe_toml
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import Diverged, NoSignal
from groupwise.learner import FromDirectory
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout

ALWAYS = ("eval/accuracy", "eval/accuracy_greedy", "entropy", "completions/mean_length", "frac_reward_zero_std")
"""The metrics that every result holds, beside those of the effects."""
COLLAPSES = (Diverged, NoSignal)
"""The errors of a run whose training failed. They are results: a learning rate at which a method collapses counts."""
Bases = Mapping[str, Callable[[int, Path], Recipe]]
"""Models that a study makes for each seed, by their name in a trial's settings, such as `@base`.

Returns the recipe whose run makes the model of a seed. Writes the files that the recipe reads into a folder.
"""


def run_trial(
    trial: StudyRun,
    metrics: Iterable[str],
    home: Path,
    root: Path,
    bases: Bases | None = None,
    use: Sequence[Path] = (),
) -> StudyRunResult:
    """Run a trial in the folder `home`, and return its result, also of a run that collapsed. `root` is the repository.

    `use` are the files of the parts that the trial names as a user's.
    """
    recipe = trial.recipe()
    ready = with_models(on_base(recipe, home, bases or {}), trial, home)
    with open_log(home):
        start = sum(os.times()[:4])
        try:
            run = train(ready, out=home / "runs", name=directory_name(trial), permissions=Permissions(use=use))
        except COLLAPSES as error:
            print(f"{directory_name(trial)} collapsed: {error}")
            run = None
        seconds = sum(os.times()[:4]) - start  # also of the processes that the run has started and that ended
    if run and run.stop_reason:
        raise KeyboardInterrupt(run.stop_reason)
    measured = run.metrics if run else {}
    series = {name: measured.get(name, {}) for name in sorted({*ALWAYS, *metrics})}
    return StudyRunResult(
        trial=trial,
        metrics={name: {i: float(f"{x:.6g}") for i, x in points.items()} for name, points in series.items()},
        tokens=generated_tokens(run) if run else (),
        cpu_seconds=round(seconds, 1),
        commit=commit_of(root),
        recipe_hash=sha256(recipe_toml.write(recipe).encode()).hexdigest()[:16],
        code_hash=code_hash(recipe.method),
        model_hash=packaged_weights(recipe.model),
    )


def generated_tokens(run: Run) -> tuple[int, ...]:
    """The tokens that each iteration generated, in all its samples."""
    lines = read_lines(RunLayout(run.directory).timings)
    return tuple(round(x["tokens_per_second"] * x["seconds"]) for x in lines if x["iteration"])


def directory_name(trial: StudyRun) -> str:
    """The name of a trial's run directory, without its time."""
    settings = sha256("\n".join(trial.settings).encode()).hexdigest()[:6]
    return f"{trial.task}-{trial.method}-{settings}-{trial.seed}" + f"-base{trial.base}" * bool(trial.base)


@contextlib.contextmanager
def open_log(home: Path) -> Iterator[None]:
    """Messages of runs go to a file."""
    home.mkdir(parents=True, exist_ok=True)
    log = (home / "log.txt").open("a", encoding="utf-8")
    with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        yield


# Models


def with_models(recipe: Recipe, trial: StudyRun, home: Path) -> Recipe:
    """The recipe with the model after the task's warm start, and with trained models in place of `@NAME`."""
    models = dict(recipe.method.models)
    for name, model in models.items():
        if isinstance(model, FromDirectory) and model.directory.startswith("@"):
            teacher = StudyRun(model.directory[1:], trial.task, trial.seed, base=trial.base)
            models[name] = replace(model, directory=trained_model(teacher, home))
    method = replace(recipe.method, models=tuple(models.items()))
    return replace(recipe, method=method, model=start_model(trial.task, recipe, home, trial.base), warm_start=None)


def on_base(recipe: Recipe, home: Path, bases: Bases) -> Recipe:
    """The recipe with the model of its seed in place of a name in `bases`."""
    if recipe.model not in bases:
        return recipe
    with lock(home / "bases.lock"), open_log(home):
        start = bases[recipe.model](recipe.seed, home / "bases")
    name = f"base-{sha256(recipe_toml.write(start).encode()).hexdigest()[:6]}-{recipe.seed}"
    return replace(recipe, model=model_of(name, start, home))


def start_model(task: str, recipe: Recipe, home: Path, base: int = 0) -> str:
    """The model that a recipe starts from: its warm start is run once, with the seed `base`, for all trials with it."""
    model = str(first_model(recipe.model, base, home / "models")) if base else recipe.model
    if recipe.warm_start is None:
        return model
    plain = read_recipe(find_recipe(task), [("iterations", "0"), ("evaluate.problems", "1"), ("seed", str(base))])
    start = replace(plain, model=model, warm_start=recipe.warm_start)
    return model_of(f"start-{task}-{sha256(recipe_toml.write(start).encode()).hexdigest()[:6]}", start, home)


def trained_model(trial: StudyRun, home: Path) -> str:
    """The model that another trial ends with."""
    return model_of(f"model-{directory_name(trial)}", with_models(trial.recipe(), trial, home), home)


def model_of(name: str, recipe: Recipe, home: Path) -> str:
    """The directory of the model that a recipe trains. It is trained once; other processes wait."""
    with lock(home / f"{name}.lock") as held:
        assert held
        finished = home / f"{name}.txt"  # a stopped run has a model, too
        if not finished.is_file():
            with open_log(home):
                run = train(recipe, out=home / "models", name=name)
            if run.stop_reason:
                raise KeyboardInterrupt(run.stop_reason)
            finished.write_text(str(run.model_dir), encoding="utf-8")
        return finished.read_text("utf-8")


# All trials


def run_all(
    trials: Mapping[StudyRun, Iterable[str]],
    results: Path,
    home: Path,
    root: Path,
    until: float,
    bases: Bases | None = None,
    use: Sequence[Path] = (),
) -> Iterator[tuple[StudyRun, StudyRunResult | Exception]]:
    """Run the trials that have no fresh result with their metrics, in order, and store each result in the file.

    `trials` are the metrics that each needs. Yields each trial with its result or its error. No trial starts after
    `until` (of `time.monotonic`). Another process may run at the same time: each trial is run by one of them.
    """
    for trial, metrics in trials.items():
        if time.monotonic() > until:
            return
        with lock(home / "locks" / directory_name(trial), wait=False) as held:
            if not held or is_measured(trial, metrics, read_results(results)):
                continue
            try:
                result = run_trial(trial, metrics, home, root, bases, use)
            except Exception as error:  # one method that fails must not end the others' measurement
                yield trial, error
                continue
            with lock(home / "results.lock"):
                stored = read_results(results)
                result = with_earlier_metrics(result, stored.get(trial))
                write_results(results, {**stored, trial: result}.values())
            yield trial, result


def with_earlier_metrics(result: StudyRunResult, earlier: StudyRunResult | None) -> StudyRunResult:
    """A result with the metrics that an equal earlier run of the trial stored for other studies."""
    if earlier is None or is_stale(earlier):
        return result
    return replace(result, metrics={**earlier.metrics, **result.metrics})


def unmeasured(trials: Mapping[StudyRun, Iterable[str]], results: Path) -> list[StudyRun]:
    """The trials without a fresh result with their metrics: not run, failed, or run by another process now."""
    stored = read_results(results)
    return [trial for trial, metrics in trials.items() if not is_measured(trial, metrics, stored)]


def is_measured(trial: StudyRun, metrics: Iterable[str], results: Mapping[StudyRun, StudyRunResult]) -> bool:
    """Whether a trial has a fresh result with the metrics."""
    result = results.get(trial)
    return result is not None and not is_stale(result) and set(metrics) <= result.metrics.keys()
