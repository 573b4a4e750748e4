"""References to earlier phases in the strings of a recipe: `@search/model` is a file of the phase `search`.

A phase's own recipe.toml keeps them, so that a run of phases can be moved as a whole.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.core import Usage

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
    return _changed(data, where, lambda text, here: REFERENCE.sub(partial(_path, here, earlier, locate), text))


def _changed(data: Any, where: str, change: Callable[[str, str], str]) -> Any:
    """A recipe's data with each string that may be a path changed; `change` gets the string and its dotted path."""
    if isinstance(data, str):
        return change(data, where)
    if isinstance(data, Mapping):
        skipped = TEXTS if where.count(".") < 2 else ()
        return {k: x if k in skipped else _changed(x, f"{where}.{k}", change) for k, x in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(_changed(x, f"{where}.{i}", change) for i, x in enumerate(data))
    return data


def _path(where: str, earlier: tuple[str, ...], locate: Locate, reference: re.Match[str]) -> str:
    name, _, path = reference[1].partition("/")
    if name in earlier:
        return locate(name, path)
    known = f"the earlier phases are {', '.join(earlier)}" if earlier else "this is the first phase"
    raise Usage(f"{where}: no earlier phase is called {name!r}", evidence=reference[0], fix=known)


def located(data: Any, earlier: Mapping[str, Path]) -> Any:
    """The data of a phase's recipe.toml with paths in place of its references to the earlier phases."""
    if not earlier:
        return data
    return with_paths(data, "recipe", tuple(earlier), lambda name, path: os.path.join(earlier[name], path).rstrip("/"))


def with_references(data: Any, earlier: Mapping[str, Path]) -> Any:
    """The data of a phase's recipe with references in place of the paths of the earlier phases."""
    patterns = {
        name: re.compile(rf"(?<![^:]){re.escape(str(directory))}(?=/|:|$)") for name, directory in earlier.items()
    }

    def referring(text: str, where: str) -> str:
        for name, pattern in patterns.items():
            text = pattern.sub(f"@{name}", text)
        return text

    return _changed(data, "recipe", referring) if patterns else data
