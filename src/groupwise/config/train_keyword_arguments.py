"""Converts keyword arguments of `groupwise.train` and similar calls to recipe fields."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from groupwise.config.answer_with_value import line_with_value
from groupwise.config.fields import SECOND_NAMES
from groupwise.config.packaged import find_recipe
from groupwise.config.parse_toml_values import hints_of
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import plain, write
from groupwise.config.registry import methods
from groupwise.config.toml import PythonText, base_of, is_toml
from groupwise.config.user_code import Permissions
from groupwise.core import Usage
from groupwise.methods import Method
from groupwise.methods.families import methods_with_argument
from groupwise.runs.phase_directories import KEY


def recipe_source(recipe: Recipe | str | Path | None) -> str | Path | None:
    """Convert the argument `recipe` of the library to a file or TOML text; None without a recipe.

    A string is TOML text (with a newline or `=`), a file, or the name of a packaged recipe. Raises `Usage`.

    >>> recipe_source("smollm2").name, recipe_source('method = "gspo"')
    ('smollm2.toml', 'method = "gspo"')
    """
    if isinstance(recipe, Recipe):
        return write(recipe)
    if recipe is None or isinstance(recipe, Path):
        return recipe
    if not isinstance(recipe, str):
        fix = "pass a TOML file, the name of a packaged recipe, or a gw.Recipe"
        raise Usage(f"recipe is {type(recipe).__name__}", evidence=repr(recipe)[:80], fix=fix)
    if recipe in methods() and not Path(recipe).exists():
        raise Usage(f"{recipe} is a method, not a recipe", fix=f'train with it: gw.train(method="{recipe}")')
    return recipe if is_toml(recipe) else find_recipe(recipe)


def fields_of(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe fields that the library's arguments set. Raises `Usage` if two arguments set the same field.

    >>> fields_of({"data": "sums.jsonl", "max_tokens": 9}, {"seed": 1})
    {'seed': 1, 'task': 'sums.jsonl', 'sampling.max_tokens': 9}
    """
    fields: dict[str, Any] = {}
    for word, value in (*settings.items(), *given.items()):
        path = SECOND_NAMES.get(word, word)
        if path in fields:
            raise Usage(f"{word} and {path} set the same field", fix=f"leave out {path}")
        fields[path] = value
    return fields


def overrides_of(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Convert keyword arguments, by field name or dotted path, to overrides of a recipe.

    A value is that of the field (`AdamW(lr=1e-5)`, a `Method`), or its form in TOML: a number, a name, a dict. Raises
    `Usage` for an unknown name.

    >>> overrides_of({"optimizer": {"lr": 1e-5}, "sampling.max_tokens": 64})
    [('optimizer', {'lr': 1e-05}), ('sampling.max_tokens', 64)]
    """
    known, permissions = {KEY, *(f.name for f in fields(Recipe))}, {f.name for f in fields(Permissions)}
    for name in settings:
        if name.partition(".")[0] not in known:
            if name in permissions:
                fix = f"pass permissions=gw.Permissions({name}=...)"
                raise Usage(f"{name} is a permission, not a field of a recipe", fix=fix)
            near = get_close_matches(name, [*known, *SECOND_NAMES], n=1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else "groupwise show FILE prints all fields of a recipe"
            fix = in_call(name, settings) or fix
            raise Usage(f"no argument and no field of a recipe is called {name!r}", fix=fix)
    hints = hints_of(Recipe)
    if (environment := settings.get("environment", "")) and not isinstance(environment, str):
        raise not_a_name(environment)
    function = getattr(settings.get("method"), "__name__", "")
    if function in methods():
        raise Usage(f"method is the function {function}", fix=f"call it: method=gw.{function}()")
    values = {path: as_data(_lora(path, value), hints.get(path, Any)) for path, value in settings.items()}
    return [(path, PythonText(value) if isinstance(value, str) else value) for path, value in values.items()]


def in_call(name: str, settings: Mapping[str, Any]) -> str:
    """The fix for an argument that is an option of TRL or verl, with its value; empty for another name.

    An argument of the method that `settings` name is one of its function.

    >>> in_call("beta", {"beta": 0.2, "method": "dpo"})
    'write method=gw.dpo(beta=0.2)'
    """
    method = settings.get("method", "")
    base = base_name(method) if isinstance(method, Method) else base_of({"method": method})
    fix = line_with_value(name, settings[name], base)
    argument = re.match(r"write method\.(\w+) = ([^,]+), as", fix)
    if argument and base in methods_with_argument().get(argument[1], ()):
        return f"write method=gw.{base}({argument[1]}={argument[2]})"
    return fix


def not_a_name(environment: Any) -> Usage:
    """The error for an environment that is passed as a class or a value: a run records its name and its file."""
    made = environment if callable(environment) and hasattr(environment, "__name__") else type(environment)
    if made.__module__ == "builtins":
        fix = 'pass its name, such as environment="tools", or my_file:MyEnvironment of a file (docs/turns.md)'
        return Usage(f"environment is {environment!r}, not a name", fix=fix)
    module = made.__module__ if made.__module__ != "__main__" else "my_file"
    file = f'permissions=gw.Permissions(use=["{module}.py"])'
    fix = f'pass its name and its file: environment="{module}:{made.__name__}", {file}'
    return Usage(f"environment is the object {made.__name__}, not a name", fix=fix)


def _lora(path: str, value: Any) -> Any:
    """The number of the argument `lora` as the rank of an adapter; any other value unchanged. `Usage` for a class."""
    if path == "lora" and value is True:
        raise Usage("lora is True", fix="pass the rank of the adapter: lora=16")
    if isinstance(value, type) and is_dataclass(value):
        raise Usage(f"{path} is the class {value.__name__}", fix=f"pass a value of it: {path}=gw.{value.__name__}(...)")
    return {"rank": value} if path == "lora" and isinstance(value, int) and not isinstance(value, bool) else value


def as_data(value: Any, hint: Any = Any) -> Any:
    """Convert a Python value to TOML data: components and dataclasses become names and tables, at any depth.

    None is `"none"` for a field that may be None (`lora=None`), and stays None, which is an error later, for others.
    """
    if value is None and NoneType in get_args(hint):
        return "none"
    if isinstance(value, Mapping):
        return {str(name): as_data(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_data(inner) for inner in value]
    if is_dataclass(value) or callable(value) or isinstance(value, tuple):
        is_record = is_dataclass(value) and not callable(value)
        return plain(value, type(value) if is_record and hint is Any else hint)
    return str(value) if isinstance(value, Path) else value


def base_name(method: Method) -> str:
    """The name of the published method that equals `method`, or differs only in numbers and booleans; else empty.

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
