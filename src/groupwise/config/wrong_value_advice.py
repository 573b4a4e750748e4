"""What to write for a value that its field cannot have: `lora = "eight"` is answered with `such as lora.rank = 32`.

Advice is a line of a recipe; the command line and Python render it as an option or an argument.
"""

import json
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from groupwise.config.fields import recipe_fields
from groupwise.config.registry import fitting_names
from groupwise.config.trl_and_verl_names import EARLIER_COMPONENTS

__all__ = ["component_advice", "example_line", "list_advice", "table_advice"]


def component_advice(where: str, name: str, socket: Any, hints: dict[str, Any]) -> str:
    """The fix for an unknown component: its present name, one with a similar name, or a field of the only one.

    >>> from groupwise.data import EngineSettings
    >>> component_advice("recipe.engine", "vllm", EngineSettings, {})
    'did you mean engine = "Vllm"?'
    """
    path, names = path_of(where), fitting_names(socket)
    if name in EARLIER_COMPONENTS:
        return f"write {line(path, EARLIER_COMPONENTS[name])}, its name here"
    lower = {known.lower(): known for known in names}
    near = lower.get(name.lower()) or next(iter(get_close_matches(name, names, n=1, cutoff=0.6)), "")
    if near:
        return f"did you mean {line(path, near)}?"
    return table_advice(where, name, socket, hints) if is_dataclass(socket) else ""


def table_advice(where: str, value: Any, cls: Any, hints: dict[str, Any]) -> str:
    """The fix for a value in place of a table: the field of the table that takes it, or an example of a field.

    `hints` are the types of the fields of the class `cls`.

    >>> from groupwise.config.parse_toml_values import hints_of
    >>> from groupwise.config.recipe import Cluster, Save
    >>> table_advice("recipe.save", 10, Save, hints_of(Save))
    'write save.every = 10'
    >>> table_advice("recipe.cluster", "ray", Cluster, hints_of(Cluster))
    'write cluster.launch = "ray"'
    """
    if not is_dataclass(cls):
        return ""
    names = [f.name for f in fields(cls)]
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    exact = [name for name in names if get_origin(hints[name]) is Literal and value in get_args(hints[name])]
    typed = [name for name in names if type(value) in (hints[name], *get_args(hints[name]))]
    if isinstance(value, str):
        typed = [name for name in typed if name in (*required, names[0])] or required[:1]
    if taken := [*exact, *typed]:
        path, text = path_of(where), json.dumps(value, ensure_ascii=False)
        is_element = path.rpartition(".")[2].isdecimal()
        return f"write {{ {taken[0]} = {text} }}" if is_element else f"write {path}.{taken[0]} = {text}"
    return next((example for name in names if (example := example_line(f"{where}.{name}", hints[name]))), "")


def list_advice(where: str, value: Any) -> str:
    """The fix for a text or number in place of a list.

    >>> list_advice("recipe.trackers", "wandb")
    'write trackers = ["wandb"]'
    """
    return f"write {line(path_of(where), [value])}" if isinstance(value, str | int | float) else ""


def example_line(where: str, kind: Any) -> str:
    """The fix for a value of another type: an example of the field, if the table of fields has one.

    >>> example_line("recipe.lora.rank", int), example_line("recipe.columns.prompt", str)
    ('such as lora.rank = 32', 'such as columns.prompt = "question"')
    """
    field = recipe_fields().get(path_of(where))
    if field is None or not field.example:
        return ""
    return f"such as {field.name} = {json.dumps(field.example) if kind is str else field.example}"


def line(path: str, value: Any) -> str:
    """The line of a recipe that sets a field; an element of a list is its value alone."""
    text = json.dumps(value, ensure_ascii=False)
    return text if path.rpartition(".")[2].isdecimal() else f"{path} = {text}"


def path_of(where: str) -> str:
    """The dotted path of a field in a recipe, from the path of a message."""
    return where.removeprefix("recipe").removeprefix(".")
