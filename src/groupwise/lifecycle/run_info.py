"""Collects the contents of run.json, which describes a new run."""

import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.config.diff import diff
from groupwise.config.phase_references import with_references
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode, function_hash
from groupwise.methods import Method, published, reference_of
from groupwise.models import commit_of, find_model, remote_code
from groupwise.rollout.prompt_template import FORMS, worded
from groupwise.runs.run_info import RunInfo


def describe_run(
    name: str, recipe: Recipe, base: str, use: UserCode, command: str, identity: Mapping[str, Any]
) -> RunInfo:
    """The content of a new run.json. `base` is the recipe's published method; `identity`, the hashes of data and model.

    The identity comes from `identity`, `data_record` and `RunObjects.adapter`.
    """
    from importlib.metadata import version

    packages = ("groupwise", "torch", "transformers", "tokenizers", "numpy", "safetensors")
    return RunInfo(
        name=name,
        command=command,
        versions={"python": platform.python_version(), **{p: version(p) for p in packages}},
        model=recipe.model,
        model_commit=commit_of(recipe.model) or "",
        task=recipe.task.label,
        method=origin(recipe.method, base),
        seed=recipe.seed,
        iterations=recipe.iterations,
        use=dict(use.hashes),
        in_memory={name: function_hash(function) for name, function in use.functions_in_memory.items()},
        **use.permissions
        | {"trust_remote_code": remote_code(find_model(recipe.model)) if use.trust_remote_code else {}},
        **identity,
    )


def movable(info: RunInfo, earlier: Mapping[str, Path]) -> RunInfo:
    """The information with references in place of the paths of `earlier` phases: the whole run can be moved."""
    names = ("model", "task", "method", "data")
    return replace(info, **{name: with_references(getattr(info, name), earlier) for name in names})


def origin(method: Method, base: str) -> dict[str, Any]:
    """The published method that a recipe starts from: its formula, its paper, and the recipe's changes."""
    constructor = next((m for m in published if m.__name__ == base), None)
    if constructor is None:
        return {"name": "an unpublished method"}
    reference = reference_of(constructor)
    changes = min((diff(worded(constructor(), form), method) for form in FORMS), key=len)
    return {"name": base, "formula": reference.formula, "reference": reference.source, "changed": changes}
