"""run.json: the description of a run, without its metrics."""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise.config.diff import diff
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import Use
from groupwise.data import Storage
from groupwise.methods import Method, published, reference_of
from groupwise.models import commit_of, find_model, remote_code
from groupwise.runs.disk import ABOUT, DISK, RECIPE, Disk, storage_errors, write_file


def begin(run: Path, description: Mapping[str, Any], recipe: str, *, disk: Disk = DISK) -> None:
    """Write run.json, then recipe.toml, which makes the directory a run. Both are synced to disk on return."""
    describe(run, description, disk=disk)
    with storage_errors("the recipe", run):
        write_file(run / RECIPE, recipe.encode(), disk)


def describe(run: Path, description: Mapping[str, Any], *, disk: Disk = DISK) -> None:
    """Write run.json."""
    with storage_errors(ABOUT, run):
        write_file(run / ABOUT, json.dumps(description, indent=2).encode() + b"\n", disk)


def description(run: Path) -> dict[str, Any]:
    """Read a run's run.json. `Storage` if it cannot be read."""
    try:
        return dict(json.loads((run / ABOUT).read_text()).items())
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        fix = "restore the file from a copy, or start the run again"
        raise Storage(f"{run / ABOUT} cannot be read", evidence=str(error), fix=fix) from error


def recorded(run: Path, key: str) -> Any:
    """The value of a key in a run's run.json; an empty list without the key."""
    return description(run).get(key, [])


def about(run: Path, recipe: Recipe, base: str, use: Use, command: str) -> dict[str, Any]:
    """The contents of run.json: name, command, versions, method, user code and permissions."""
    from importlib.metadata import version

    packages = ("groupwise", "torch", "transformers", "tokenizers", "numpy", "safetensors")
    return {
        "name": run.name,
        "command": command,
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "model": recipe.model,
        **({"model_commit": commit} if (commit := commit_of(recipe.model)) else {}),
        "task": recipe.task,
        "method": origin(recipe.method, base),
        "seed": recipe.seed,
        "iterations": recipe.iterations,
        "use": use.hashes,
        **({"keys": list(use.judges.keys)} if use.judges.keys else {}),
        **({"judges": list(use.judges.hosts)} if use.judges.hosts else {}),
        **({"unsafe_local_exec": True} if use.unsafe_local_exec else {}),
        **({"trust_remote_code": remote_code(find_model(recipe.model))} if use.trust_remote_code else {}),
    }


def origin(method: Method, base: str) -> dict[str, Any]:
    """The published method that a recipe starts from: its formula, its paper, and the recipe's changes."""
    constructor = next((m for m in published if m.__name__ == base), None)
    if constructor is None:
        return {"name": "an unpublished method"}
    reference, changes = reference_of(constructor), diff(constructor(), method)
    source = f"{reference.paper}, arXiv:{reference.arxiv}"
    return {"name": base, "formula": reference.formula, "reference": source, "changed": changes}
