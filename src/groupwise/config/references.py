"""References to earlier phases in the strings of a recipe: `@search/model` is a file of the phase `search`.

A phase's own recipe.toml keeps them, so that a run of phases can be moved as a whole.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.data import Usage
from groupwise.runs.layout import RunLayout
from groupwise.runs.phases import phase_directories

TEXTS = ("template", "sampling")
"""Fields whose text is never a path, so that an `@` in it is not a reference."""
REFERENCE = re.compile(r"(?<![^:])@([^:]*)")
"""Pattern of a reference `@NAME` to an earlier phase, at the start of a path or after a task's kind: `gsm8k:@first`."""

Locate = Callable[[str, str], str]
"""Returns the path for a reference: of `@search/model`, it receives `search` and `model`."""


def with_paths(data: Any, where: str, earlier: tuple[str, ...], locate: Locate) -> Any:
    """Replace each reference to one of the earlier phases in a recipe's data by its path. `Usage` for another name.

    >>> with_paths({"model": "@search/model"}, "recipe", ("search",), lambda name, path: f"runs/1-{name}/{path}")
    {'model': 'runs/1-search/model'}
    """
    if isinstance(data, str):
        return REFERENCE.sub(partial(_path, where, earlier, locate), data)
    if isinstance(data, Mapping):
        skipped = TEXTS if where.count(".") < 2 else ()
        return {k: x if k in skipped else with_paths(x, f"{where}.{k}", earlier, locate) for k, x in data.items()}
    if isinstance(data, list):
        return [with_paths(x, f"{where}.{i}", earlier, locate) for i, x in enumerate(data)]
    return data


def _path(where: str, earlier: tuple[str, ...], locate: Locate, reference: re.Match[str]) -> str:
    name, _, path = reference[1].partition("/")
    if name in earlier:
        return locate(name, path)
    known = f"the earlier phases are {', '.join(earlier)}" if earlier else "this is the first phase"
    raise Usage(f"{where}: no earlier phase is called {name!r}", evidence=reference[0], fix=known)


def earlier_phases(run: Path) -> dict[str, Path]:
    """The directories of the phases before a phase's run, by name; empty for any other run."""
    run = run if run.name else run.absolute()
    directories = phase_directories(run.parent)
    before = directories[: directories.index(run)] if run in directories else ()
    return {path.name.partition("-")[2]: path for path in before}


def located(data: Any, recipe: Path) -> Any:
    """The data of a run's recipe.toml with paths in place of its references to earlier phases."""
    earlier = earlier_phases(recipe.parent) if recipe == RunLayout(recipe.parent).recipe else {}
    if not earlier:
        return data
    return with_paths(data, "recipe", tuple(earlier), lambda name, path: os.path.join(earlier[name], path).rstrip("/"))


def with_references(data: Any, run: Path) -> Any:
    """The data of a recipe with references in place of the paths of phases before this run."""
    if isinstance(data, str):
        for name, directory in earlier_phases(run).items():
            data = re.sub(rf"(?<![^:]){re.escape(str(directory))}(?=/|:|$)", f"@{name}", data)
        return data
    if isinstance(data, Mapping):
        return {key: with_references(x, run) for key, x in data.items()}
    return type(data)(with_references(x, run) for x in data) if isinstance(data, list | tuple) else data
