"""Reads recipes and methods from TOML, overrides their fields, and writes them.

A component is given by its public name: `token_mean`, or `{ kind = "Clip", low = 0.2 }`. A table without `kind` changes
constants in place. `base` names a published method. A component in the user's file is `kind = "my_file:MyClip"`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import tomli_w

from groupwise.config.parse_toml_values import ValueParser, hints_of
from groupwise.config.phase_references import located, with_references
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_errors import one_error
from groupwise.config.registry import UnloadedPart, public_name
from groupwise.config.toml import (
    CommandLineValue,
    overridden,
    override_value,
    parse_toml,
    read_toml,
    read_with_overrides,
    set_path,
    set_paths,
)
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.data import VerifierSettings
from groupwise.methods import ScheduleInput
from groupwise.methods.schedules import trial_iterations
from groupwise.runs.open_run import OpenRun
from groupwise.runs.phase_directories import KEY, earlier_phases, trained_model
from groupwise.runs.run_layout import RunLayout

T = TypeVar("T")

# Reading


def read_recipe(source: str | Path, overrides: Sequence[tuple[str, Any]] = (), use: UserCode | None = None) -> Recipe:
    """Read a recipe from a TOML file, or TOML text (a string with a newline or `=`), with overrides by dotted path.

    Raises `Usage` with all problems. `use` holds the loaded files of `--use`, which the recipe may name code from.

    >>> recipe = read_recipe("prompts = 8\\nmethod.group_size = 4", [("method.objective.surrogate.high", "0.3")])
    >>> recipe.prompts, recipe.method.group_size, recipe.method.objective.surrogate.high
    (8, 4, 0.3)
    """
    recipe, problems = read_with_problems(source, overrides, use or UserCode())
    if problems or recipe is None:
        raise one_error(problems)
    return recipe


def read_run_recipe(run: OpenRun, overrides: Sequence[tuple[str, Any]] = (), use: UserCode | None = None) -> Recipe:
    """The recipe of an open run, as `read_recipe` reads it from a file."""
    data = overridden(parse_toml(run.recipe_text, str(run.layout.recipe)), overrides)
    recipe, problems = read_data(located(data, run.earlier), use or UserCode())
    if problems or recipe is None:
        raise one_error(problems)
    return recipe


def read(kind: type[T], source: str | Path) -> T:
    """Read a value of any frozen dataclass from TOML. Raises `Usage` with all errors."""
    reading = ValueParser(UserCode())
    value = reading.table(kind, read_toml(source), MISSING, kind.__name__)
    if reading.errors:
        raise one_error(reading.errors)
    return value


def read_verifier(data: Any, use: UserCode | None = None) -> VerifierSettings:
    """Read a verifier from TOML data, a name or a table. Raises `Usage` with all errors.

    Without `use`, code in the user's files becomes an `UnloadedPart`.

    >>> read_verifier({"kind": "math", "use_algebra": False}).use_algebra
    False
    """
    reading = ValueParser(use)
    kind = reading.value(data, VerifierSettings, MISSING, "verifier")
    if reading.errors:
        raise one_error(reading.errors)
    return kind


def read_over(value: T, where: str, overrides: Sequence[tuple[str, Any]]) -> T:
    """Override fields of a dataclass; `where` is its path in error messages. Raises `Usage` with all errors."""
    reading, data = ValueParser(UserCode()), {}
    set_paths(data, [(path, override_value(override)) for path, override in overrides])
    changed = reading.table(type(value), data, value, where)
    if reading.errors:
        raise one_error(reading.errors)
    return changed


def read_with_problems(
    source: str | Path,
    overrides: Sequence[tuple[str, Any]] = (),
    use: UserCode | None = None,
    *,
    only: Sequence[str] | None = None,
) -> tuple[Recipe | None, list[Usage]]:
    """Read a recipe: the recipe (None if it is invalid), and all errors in it.

    Without `use`, code in the user's files becomes an `UnloadedPart` and nothing is imported. With `only`, the named
    fields are read and the others, method included, have their defaults.
    """
    try:
        data = read_with_overrides(source, overrides)
        if isinstance(source, Path) and source == RunLayout(source.parent).recipe:
            data = located(data, earlier_phases(source.parent))
    except Usage as error:
        return None, [error]
    return read_data(data, use, only=only)


def read_data(
    data: Mapping[str, Any], use: UserCode | None, *, only: Sequence[str] | None = None
) -> tuple[Recipe | None, list[Usage]]:
    """As `read_with_problems`, from the recipe's data."""
    if KEY in data:
        fix = "name the directory of one phase, such as RUN/1-NAME; train and check take the whole recipe"
        return None, [Usage("this recipe has phases, and one recipe without phases is needed", fix=fix)]
    if only is not None:
        data = {"method": {}, **{name: data[name] for name in only if name in data}}
    return read_tables([("recipe", data)], use)


def read_tables(
    tables: Sequence[tuple[str, Mapping[str, Any]]], use: UserCode | None
) -> tuple[Recipe | None, list[Usage]]:
    """Read a recipe from TOML tables, each of which overrides the ones before it: the recipe, or None, and all errors.

    `tables` are pairs of the path for messages and the data.
    """
    reading = ValueParser(use)
    recipe: Any = MISSING
    for where, data in tables:
        recipe = reading.table(Recipe, dict(data), recipe, where)
        if recipe is MISSING:
            return None, reading.errors
    try:
        recipe = replace(recipe, model=trained_model(recipe.model))
    except Usage as error:
        reading.errors.append(error)
    if use is not None:
        reading.check_user_names(recipe)
    try:
        try_schedules(recipe)
    except Usage as error:
        reading.errors.append(error)
    return recipe, reading.errors


def override(value: T, path: str, text: Any, use: UserCode | None = None) -> T:
    """Change one field by dotted path: `override(method, "objective.surrogate.high", "0.35")` returns a new method.

    `text` is the name of a component, or TOML. Raises `Usage`.
    """
    data: dict[str, Any] = {}
    set_path(data, path, CommandLineValue(text) if isinstance(text, str) else text)
    reading = ValueParser(use or UserCode())
    changed = reading.table(type(value), data, value, type(value).__name__.lower())
    if reading.errors:
        raise one_error(reading.errors)
    return changed


def try_schedules(recipe: Recipe) -> None:
    """Raise `Usage` for a schedule without a field, or whose number does not fit it, at one of `trial_iterations`."""
    schedules = recipe.method.schedules
    states = {name: part.init() for name, part in recipe.method.states} if schedules else {}
    for i in trial_iterations([x for _, x in schedules], recipe.iterations, states) if schedules else ():
        method = recipe.method
        for path, schedule in schedules:
            value = schedule(ScheduleInput(i, recipe.iterations, states))
            method = override(method, path, int(value) if float(value).is_integer() else value)


# Writing


def write(value: Any) -> str:
    """Write a recipe or method as TOML text, with every constant. Reading the text gives an equal value."""
    return tomli_w.dumps(plain(value, type(value)))


def write_for(earlier: Mapping[str, Path], recipe: Recipe) -> str:
    """The text of a run's recipe.toml. Paths of `earlier` phases are references, so that the run can be moved."""
    return tomli_w.dumps(with_references(plain(recipe, Recipe), earlier))


def plain(value: Any, hint: Any) -> Any:
    """Convert a value to TOML data: numbers, strings, lists and dictionaries."""
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        args = get_args(hint) or (Any, ...)
        inner = args if ... not in args else args[:1] * len(value)
        if get_origin(args[0]) is tuple and get_args(args[0])[0] is str:
            return {name: plain(x, get_args(args[0])[1]) for name, x in value}
        return [plain(x, h) for x, h in zip(value, inner)]
    if isinstance(value, UnloadedPart):
        return {"kind": value.part, **dict(value.arguments)} if value.arguments else value.part
    if is_dataclass(value) and type(value) in (hint, *get_args(hint)) and fields(value):
        return constants(value)
    name = public_name(value)
    return {"kind": name, **constants(value)} if is_dataclass(value) and fields(value) else name


def constants(value: Any) -> dict[str, Any]:
    """The fields of a component (a dataclass) as TOML data, by name; those `written_if_set` are left out if None."""
    optional = {f.name for f in fields(value) if f.metadata.get("written_if_set")}
    values = {f.name: getattr(value, f.name) for f in fields(value)}
    hints = hints_of(type(value))
    return {name: plain(x, hints[name]) for name, x in values.items() if name not in optional or x is not None}
