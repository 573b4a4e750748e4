"""Lists the differences between two methods or two recipes, one line per field."""

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from groupwise.config.parse_toml_values import hints_of
from groupwise.config.registry import UnloadedPart, public_name
from groupwise.core import Usage
from groupwise.data import name_of


def diff(a: Any, b: Any) -> list[str]:
    """The differences between two methods or two recipes, one line per field.

    >>> from dataclasses import replace
    >>> from groupwise.methods import Method
    >>> diff(Method(), replace(Method(), max_refills=3, minibatches=2))
    ['filter: everything -> everything (max_refills 3)', 'minibatches: 1 -> 2']
    """
    return differences(a, b, type(a), "")


def changed_fields(a: Any, b: Any) -> list[str]:
    """The fields that differ between two methods, each as a path of at most two names.

    >>> from groupwise.methods import dapo, gspo
    >>> changed_fields(dapo(), gspo())
    ['filter', 'shaping', 'objective.surrogate', 'objective.aggregate', 'minibatches']
    """
    paths = (line.partition(":")[0].split(".")[:2] for line in diff(a, b))
    return list(dict.fromkeys(".".join(path) for path in paths))


def differences(a: Any, b: Any, hint: Any, where: str) -> list[str]:
    """The differences between two values of type `hint`; `where` is the dotted path of both."""
    if a == b and type(a) is type(b):
        return []
    if type(a) is not type(b) or not is_dataclass(a) or isinstance(a, UnloadedPart):
        return [f"{where}: {label(a, hint)} -> {label(b, hint)}"]
    lines, hints = [], hints_of(type(a))
    beside = {f.name: f.metadata["printed_with"] for f in fields(a) if "printed_with" in f.metadata}
    for f in fields(a):
        path = f"{where}.{f.name}" if where else f.name
        companions = [g for g in fields(a) if beside.get(g.name) == f.name]
        if any(getattr(a, g.name) != getattr(b, g.name) for g in companions):
            lines.append(f"{path}: {' -> '.join(_label_with(x, f, companions, hints) for x in (a, b))}")
        elif f.name not in beside:
            lines += differences(getattr(a, f.name), getattr(b, f.name), hints[f.name], path)
    return lines


def _label_with(value: Any, f: Field[Any], companions: list[Field[Any]], hints: Mapping[str, Any]) -> str:
    """A field's value as text, with related fields that are not at their default: `mixed_outcomes (max_refills 10)`."""
    notes = [
        f"({g.name} {label(getattr(value, g.name), hints[g.name])})"
        for g in companions
        if getattr(value, g.name) != g.default
    ]
    return " ".join([label(getattr(value, f.name), hints[f.name]), *notes])


def label(value: Any, hint: Any = Any) -> str:
    """A value as short text, such as `OverlongPenalty(buffer_length=4096, penalty_factor=1)`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int | str):
        return str(value) or '""'
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        element = get_args(hint)[0] if get_args(hint) else Any
        if get_origin(element) is tuple and get_args(element)[0] is str:
            pairs = [(name, x, type(x) is get_args(element)[1] and not _fields(x)) for name, x in value]
            return ", ".join(name if implied else f"{name} {label(x)}" for name, x, implied in pairs)
        return ", ".join(label(x) for x in value)
    try:
        name = public_name(value)
    except Usage:
        name = name_of(value)
    if isinstance(value, UnloadedPart):
        constants = list(value.arguments)
    else:
        constants = [(f.name, getattr(value, f.name)) for f in _fields(value)]
    return f"{name}({', '.join(f'{n}={label(x)}' for n, x in constants)})" if constants else name


def _fields(value: Any) -> tuple[Field[Any], ...]:
    return fields(value) if is_dataclass(value) else ()
