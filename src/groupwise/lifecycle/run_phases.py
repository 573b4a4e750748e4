"""Runs of several phases (such as warm-up, then main training): starts or continues them in order."""

import time
from collections.abc import Callable

from groupwise.config.phase_recipes import Phase, read_phases
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import one_error
from groupwise.config.recipe_toml import write_for
from groupwise.config.resolve_devices import resolved
from groupwise.config.toml import parse_toml
from groupwise.config.user_code import UserCode
from groupwise.core import BadData
from groupwise.lifecycle.create_or_open_run import begin, read_checked, reopen
from groupwise.lifecycle.resume_checks import recipe_changes
from groupwise.lifecycle.run import run_from
from groupwise.lifecycle.run_handle import RunControl, RunEnding
from groupwise.report.report import write_report
from groupwise.rollout.prompt_template import FORMS
from groupwise.runs.atomic_writes import DISK, storage_errors
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.open_run import OpenRun, recipe_text
from groupwise.runs.phase_directories import earlier_phases
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import build
from groupwise.training.strategy_default_texts import in_form


def run_phases(
    layout: RunLayout,
    text: str,
    use: UserCode,
    finish: Callable[[RunEnding], object],
    notify: Callable[[str], None],
    stop_after: float | None = None,
    *,
    command: str = "",
    strict: bool = False,
    changed: bool = False,
    control: RunControl | None = None,
) -> RunEnding:
    """Start or continue each unfinished phase of a run, in order. Returns the ending of the last one that ran.

    `text` is its recipe.toml. A phase is finished when its model is written. The phases share the seconds of
    `stop_after`. `finish` gets the ending of each phase. With `changed`, a started phase may have another recipe than
    the run's recipe gives it.
    """
    end = None if stop_after is None else time.monotonic() + stop_after
    ending = RunEnding("", 0)
    phases = read_phases(parse_toml(text, str(layout.recipe)))
    folders = [RunLayout(layout.phase(phase.index, phase.name)) for phase in phases]
    for phase, folder in zip(phases, folders, strict=True):
        recipe = phase_recipe(layout, phase, use)
        started = recipe_text(folder) if folder.is_run else None
        if started is not None:
            check_recipe(layout, folder, started, recipe, accept=changed)
        if folder.model.is_dir():
            continue
        if not folder.run_directory.is_dir():
            with storage_errors("a phase", layout.run_directory):
                DISK.mkdir(folder.run_directory)
                DISK.sync(layout.run_directory)
        seconds = None if end is None else max(0.0, end - time.monotonic())
        with RunLock(folder) as lock:
            if started is not None:
                run, ready = reopen(OpenRun.read(lock, started), use)
                for line in ready.notices:
                    notify(line)
            else:
                ready = build(recipe, use, read_checked(recipe, use, notify))
                run = begin(lock, ready, use, phase.base, command)
            try:
                ending = run_from(run, ready, seconds, strict=strict, changed=changed, control=control)
            finally:
                ready.verifier.close()
        del ready  # one model at a time in memory
        finish(ending)
        with storage_errors("the report", layout.run_directory):
            report = write_report([folder.run_directory for folder in folders if folder.is_run], layout.report)
        if not folder.model.is_dir():
            return ending
        notify(f"phase {phase.name} is finished; report of all phases: {report}")
    notify(f"all phases of {layout.run_directory} are finished")
    return ending


def phase_recipe(layout: RunLayout, phase: Phase, use: UserCode) -> Recipe:
    """The recipe of a phase. References to earlier phases become their directories. Raises `Usage`."""

    def locate(name: str, path: str) -> str:
        return str(layout.phase(phase.earlier_phases.index(name) + 1, name) / path)

    recipe, problems = phase.recipe(locate, use)
    if problems or recipe is None:
        raise one_error(problems)
    return resolved(recipe)


def check_recipe(layout: RunLayout, phase: RunLayout, before: str, recipe: Recipe, *, accept: bool) -> None:
    """`BadData` if the run's recipe was changed for a phase that has started with `before`, unless `accept`."""
    earlier = earlier_phases(phase.run_directory)
    lines = min((recipe_changes(before, write_for(earlier, in_form(recipe, form))) for form in FORMS), key=len)
    if lines and not accept:
        raise BadData(
            f"{layout.recipe} was changed for the phase {phase.run_directory.name}, which has already started",
            evidence="\n".join(lines),
            fix=f"make both equal, or continue with the recipe in {phase.run_directory}: "
            f"groupwise resume {layout.run_directory} --changed",
        )
