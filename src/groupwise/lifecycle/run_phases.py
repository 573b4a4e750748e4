"""Runs of several phases (such as warm-up, then main training): starts or continues them in order."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from groupwise.config.devices import resolved
from groupwise.config.phase_recipes import Phase, read_phases
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import one_error
from groupwise.config.recipe_toml import write_for
from groupwise.config.toml import read_toml
from groupwise.config.user_code import Use
from groupwise.core import BadData
from groupwise.data import close_verifier
from groupwise.lifecycle.resume_checks import recipe_changes
from groupwise.lifecycle.run import run_from
from groupwise.lifecycle.run_handle import Control, Ending
from groupwise.lifecycle.start import begin, read_checked, reopen
from groupwise.report.report import write_report
from groupwise.rollout.prompt_template import FORMS
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.disk import DISK, storage_errors, write_file
from groupwise.runs.layout import RunLayout
from groupwise.runs.phase_directories import runs_in
from groupwise.training.build import build
from groupwise.training.fill_templates import in_form


def begin_phases(run: Path, data: Mapping[str, Any]) -> None:
    """Write the recipe of a run with several phases, with its overrides, to an empty directory."""
    with storage_errors("the recipe", run):
        write_file(RunLayout(run).recipe, tomli_w.dumps(data).encode())


def run_phases(
    run: Path,
    use: Use,
    finish: Callable[[Ending], object],
    notify: Callable[[str], None],
    stop_after: float | None = None,
    *,
    command: str = "",
    strict: bool = False,
    changed: bool = False,
    control: Control | None = None,
) -> Ending:
    """Start or continue each unfinished phase of a run, in order. Returns the ending of the last one that ran.

    A phase is finished when its model is written. The phases share the seconds of `stop_after`. `finish` gets the
    ending of each phase. With `changed`, a started phase may have another recipe than the run's recipe gives it.
    """
    end = None if stop_after is None else time.monotonic() + stop_after
    ending = Ending("", 0)
    for phase in read_phases(read_toml(RunLayout(run).recipe)):
        directory = RunLayout(run).phase(phase.number, phase.name)
        recipe = phase_recipe(run, phase, use)
        if started := RunLayout(directory).is_run:
            check_recipe(run, directory, recipe, accept=changed)
        if RunLayout(directory).model.is_dir():
            continue
        if not directory.is_dir():
            with storage_errors("a phase", run):
                DISK.mkdir(directory)
                DISK.sync(run)
        seconds = None if end is None else max(0.0, end - time.monotonic())
        with RunLock(directory):
            if started:
                ready = reopen(directory, use)
                for line in ready.notices:
                    notify(line)
            else:
                ready = build(recipe, use, read_checked(recipe, use, notify))
                begin(directory, ready, use, phase.base, command)
            try:
                ending = run_from(directory, ready, seconds, strict=strict, changed=changed, control=control)
            finally:
                close_verifier(ready.verifier)
        del ready  # one model at a time in memory
        finish(ending)
        with storage_errors("the report", run):
            report = write_report(runs_in(run), RunLayout(run).report)
        if not RunLayout(directory).model.is_dir():
            return ending
        notify(f"phase {phase.name} is finished; report of all phases: {report}")
    notify(f"all phases of {run} are finished")
    return ending


def phase_recipe(run: Path, phase: Phase, use: Use) -> Recipe:
    """The recipe of a phase. References to earlier phases become their directories. Raises `Usage`."""

    def locate(name: str, path: str) -> str:
        return str(RunLayout(run).phase(phase.earlier.index(name) + 1, name) / path)

    recipe, problems = phase.recipe(locate, use)
    if problems or recipe is None:
        raise one_error(problems)
    return resolved(recipe)


def check_recipe(run: Path, directory: Path, recipe: Recipe, *, accept: bool) -> None:
    """`BadData` if the run's recipe was changed for a phase that has started, unless `accept`."""
    before = RunLayout(directory).recipe.read_text()
    lines = min((recipe_changes(before, write_for(directory, in_form(recipe, form))) for form in FORMS), key=len)
    if lines and not accept:
        raise BadData(
            f"{RunLayout(run).recipe} was changed for the phase {directory.name}, which has already started",
            evidence="\n".join(lines),
            fix=f"make both equal, or continue with the recipe in {directory}: groupwise resume {run} --changed",
        )
