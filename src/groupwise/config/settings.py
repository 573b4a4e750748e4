"""Recipes from Python values: the keyword arguments of `groupwise.train` and others."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from groupwise.config.other_names import FIELD_HINTS, OTHER_NAMES
from groupwise.config.problems import one_error
from groupwise.config.reading import Reading, hints_of
from groupwise.config.recipe import Recipe
from groupwise.config.registry import methods
from groupwise.config.text import plain
from groupwise.config.toml import read_toml, set_path
from groupwise.config.user_code import Use
from groupwise.data import Usage
from groupwise.methods import Method

WORDS = {"data": "task", "reward": "verifier", "max_tokens": "sampling.max_tokens"}
"""Arguments of `groupwise.train`, and the recipe fields that they set."""


def recipe_with(base: Recipe | str | Path | None, settings: Mapping[str, Any], use: Use) -> Recipe:
    """A recipe, or the recipe of a TOML file or text, with fields set by name.

    A value is that of the field (`AdamW(lr=1e-5)`, a `Method`), or its form in TOML: a number, a name, a dict. A name
    may be a dotted path. Without `base` the other fields have their defaults. Raises `Usage` with all problems.

    >>> recipe = recipe_with(None, {"method": "grpo", "optimizer": {"lr": 1e-5}, "sampling.max_tokens": 64}, Use())
    >>> recipe.optimizer.lr, recipe.sampling.max_tokens, recipe.method.group_size
    (1e-05, 64, 64)
    """
    known = {f.name for f in fields(Recipe)}
    for name in settings:
        if name.partition(".")[0] not in known:
            near = get_close_matches(name, [*known, *WORDS], n=1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else "groupwise show FILE prints all fields of a recipe"
            if name in OTHER_NAMES:
                fix = f"write {OTHER_NAMES[name]}"
            raise Usage(f"a recipe has no field {name!r}", fix=FIELD_HINTS.get(name, fix))
    data: dict[str, Any] = {} if base is None or isinstance(base, Recipe) else read_toml(base)
    for path, value in settings.items():
        set_path(data, path, as_data(value, hints_of(Recipe)[path] if "." not in path else Any))
    reading = Reading(use)
    recipe = reading.table(Recipe, data, base if isinstance(base, Recipe) else MISSING, "recipe")
    if isinstance(recipe, Recipe):
        reading.check_user_names(recipe)
    if reading.problems or not isinstance(recipe, Recipe):
        raise one_error(reading.problems)
    return recipe


def as_data(value: Any, hint: Any = Any) -> Any:
    """A value as TOML data: components and dataclasses become names and tables, also inside dicts and lists."""
    if isinstance(value, Mapping):
        return {str(name): as_data(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_data(inner) for inner in value]
    if is_dataclass(value) or callable(value) or isinstance(value, tuple):
        is_record = is_dataclass(value) and not callable(value)
        return plain(value, type(value) if is_record and hint is Any else hint)
    return str(value) if isinstance(value, Path) else value


def base_name(method: Method) -> str:
    """The published method that equals `method`, or the first that differs from it in numbers only; else empty.

    >>> from groupwise.methods import gspo
    >>> base_name(gspo(group_size=8)), base_name(Method())
    ('gspo', '')
    """
    shape = _without_numbers(method)
    near = {name: value for name, f in methods().items() if _without_numbers(value := f()) == shape}
    return next((name for name, value in near.items() if value == method), next(iter(near), ""))


def _without_numbers(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(_without_numbers(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, tuple):
        return tuple(map(_without_numbers, value))
    return 0 if isinstance(value, int | float) else value
