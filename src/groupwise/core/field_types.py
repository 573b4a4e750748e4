"""Checks the types of values that a user passes to a dataclass."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from groupwise.core.errors import Usage

__all__ = ["check_types"]

PLAIN = (bool, int, float, str, bytes, list, tuple, Mapping, set, NoneType)
"""The types of plain values, which are never components."""
CLASSES = {int: (int, Integral), float: (float, int, Real)}
"""The classes that an annotation `int` or `float` accepts, NumPy's numbers included."""
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", tuple: "a tuple",
         Mapping: "a dict", NoneType: "None"}  # fmt: skip


def check_types(value: Any) -> None:
    """Raise `Usage` for the first field of a dataclass whose value does not fit its annotation.

    The items of a tuple or a dict are not checked. A field for a component takes any object except numbers, texts and
    collections. Called in `__post_init__`.
    """
    for name, fits, words in _checks(type(value)):
        if not fits(present := getattr(value, name)):
            kind, names = type(value).__name__, ", ".join(f.name for f in fields(value))
            raise Usage(
                f"{kind}: {name} is {type(present).__name__}; expected {words}",
                evidence=f"{name} = {present!r}"[:100],
                fix=f"the arguments are {kind}({names})",
            )


@cache
def _checks(kind: type) -> tuple[tuple[str, Callable[[Any], bool], str], ...]:
    """For each field: its name, a function that tests a value, and the expected type in words."""
    hints = get_type_hints(kind)
    return tuple((f.name, _test(hints[f.name]), _words(hints[f.name])) for f in fields(kind))


def _test(hint: Any) -> Callable[[Any], bool]:
    """The function that tests whether a value fits a type."""
    arms = _arms(hint)
    known = [arm for arm in arms if arm in WORDS or (isinstance(arm, type) and issubclass(arm, Enum))]
    classes = tuple(cls for arm in known for cls in CLASSES.get(arm, (arm,)))
    if Any in arms:
        return lambda value: True
    if len(known) == len(arms):
        return lambda value: isinstance(value, classes)
    return lambda value: isinstance(value, classes) or not isinstance(value, PLAIN)


def _arms(hint: Any) -> tuple[Any, ...]:
    """The classes that a type allows: for `tuple[int, ...] | None`, `tuple` and `NoneType`."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return tuple(arm for inner in get_args(hint) for arm in _arms(inner))
    return (str,) if origin is Literal else (origin or hint,)


def _words(hint: Any) -> str:
    return " or ".join(WORDS.get(arm, getattr(arm, "__name__", str(arm))) for arm in _arms(hint))
