"""Runs of several phases: one recipe with `[[phase]]` tables. Each phase is an ordinary run in a folder `1-NAME`."""

import os
import re
import tomllib
from pathlib import Path

from groupwise.core import Usage
from groupwise.runs.run_layout import RunLayout

KEY = "phase"
"""The name of a recipe's TOML tables that define phases."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""A valid name of a phase. It is part of a folder's name."""


def phase_directories(run: Path) -> tuple[Path, ...]:
    """The directory of each phase of a run, in order, started or not. Empty for a run without phases."""
    layout = RunLayout(run)
    try:
        return phases_of(layout, layout.recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ()


def phases_of(layout: RunLayout, recipe: str) -> tuple[Path, ...]:
    """As `phase_directories`, from the text of the run's recipe.

    Only TOML with a valid name for each phase has phases.
    """
    try:
        tables = tomllib.loads(recipe).get(KEY)
    except (ValueError, RecursionError):
        return ()
    names = (
        [str(table.get("name", "")) for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
    )
    if not all(map(NAME.fullmatch, names)):
        return ()
    return tuple(layout.phase(index, name) for index, name in enumerate(names, 1))


def phases_with(run: Path) -> tuple[Path, ...]:
    """The directories of all phases of the run that this phase belongs to, in order; empty for any other run."""
    run = run if run.name else run.absolute()
    directories = phase_directories(run.parent)
    return directories if run in directories else ()


def earlier_phases(run: Path, phases: tuple[Path, ...] | None = None) -> dict[str, Path]:
    """The directories of the phases before a phase's run, by name; empty for any other run.

    `phases` is the result of `phases_with`, if it is known.
    """
    phases = phases_with(run) if phases is None else phases
    before = phases[: phases.index(run if run.name else run.absolute())] if phases else ()
    return {path.name.partition("-")[2]: path for path in before}


def runs_in(run: Path) -> list[Path]:
    """The started phases of a run in order; the run itself if it has no phases or none has started."""
    return [path for path in phase_directories(run) if RunLayout(path).is_run] or [run]


def finished_run(run: Path) -> Path | None:
    """The last finished phase of a run, or the run itself if it has no phases; None if no model is written yet."""
    return next((path for path in reversed(runs_in(run)) if RunLayout(path).model.is_dir()), None)


def trained_model(name: str) -> str:
    """The model directory of a run, if `name` is a run; else `name`. `Usage` for a run without a finished model."""
    run = Path(name)
    if not os.path.isdir(name) or not RunLayout(run).is_run:
        return name
    if (finished := finished_run(run)) is None:
        fix = f"export its newest checkpoint: groupwise export {name} A_NEW_DIRECTORY\nand name that directory instead"
        raise Usage(f"{name} is a run that has not finished: it has no model yet", fix=fix)
    return str(RunLayout(finished).model)


def whole_run(run: Path) -> Path:
    """The run that a phase belongs to; for any other run, the run itself."""
    return run.parent if run in phase_directories(run.parent) else run
