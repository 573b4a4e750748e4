"""JSON schemas of tools, from the signatures and docstrings of their functions."""

import inspect
import re
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
    NoneType: "null",
}


def tool_schema(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a tool for a chat template: its name, description, and JSON schema of its arguments.

    Types come from annotations. The description is the docstring's first paragraph, and an argument's is its line
    under `Args:`.

    >>> def weather(city: str, days: int = 1):
    ...     '''Forecast the weather.'''
    >>> tool_schema("weather", weather)["function"]["parameters"]["properties"]
    {'city': {'type': 'string'}, 'days': {'type': 'integer'}}
    """
    text = inspect.getdoc(function) or ""
    hints = _type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[parameter.name] = type_schema(hints.get(parameter.name, Any))
        if line := re.search(rf"(?m)^Args:(?:\n.*)*?\n\s+{parameter.name}\b[^:\n]*:\s*(.+)", text):
            properties[parameter.name]["description"] = line[1]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    description = " ".join(re.split(r"\n\n|\n>>>", text)[0].split())
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def type_schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type; empty for a type that has none, which allows any value.

    >>> type_schema(list[str]), type_schema(Literal["day", "night"]), type_schema(int | None), type_schema(object)
    ({'type': 'array', 'items': {'type': 'string'}}, {'enum': ['day', 'night']}, {'type': ['integer', 'null']}, {})
    """
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        members = [type_schema(argument).get("type") for argument in arguments]
        return {"type": members} if all(isinstance(member, str) for member in members) else {}
    kind = JSON_TYPES.get(origin)
    items = type_schema(arguments[0]) if kind == "array" and arguments else {}
    return {**({"type": kind} if kind else {}), **({"items": items} if items else {})}


def _type_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # an annotation may name anything
        return {}
