"""Converts a ValueError of a dataclass's constructor to the typed error `InvalidValue` with a fix."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from types import ModuleType
from typing import Any

from groupwise.core.errors import InvalidValue

CHECK = "__post_init__"
"""The method in which a dataclass checks its values."""


def type_refusals(module: ModuleType) -> None:
    """Make each dataclass in a module raise `InvalidValue` where its constructor raises ValueError.

    A room calls it for each module that it imports, so that a component only needs `raise ValueError("what\\nfix")`.
    """
    for value in tuple(vars(module).values()):
        if isinstance(value, type) and is_dataclass(value) and value.__module__.startswith("groupwise."):
            check = vars(value).get(CHECK)
            if check is not None and not hasattr(check, "types_refusals"):
                setattr(value, CHECK, typed(check))


def typed(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap a dataclass's check: a ValueError becomes `InvalidValue`, whose fix is the message after its first line.

    >>> @typed
    ... def check(value):
    ...     raise ValueError("rank is 0\\nuse at least 1")
    >>> check(1)
    Traceback (most recent call last):
    groupwise.core.errors.InvalidValue: rank is 0
      do:   use at least 1
    """

    owner = f"{check.__module__}.{check.__qualname__.rpartition('.')[0]}"
    help_call = f'help("{owner}") in Python explains its fields'

    @wraps(check)
    def checked(self: Any) -> None:
        try:
            check(self)
        except InvalidValue:
            raise
        except ValueError as error:
            what, _, fix = str(error).partition("\n")
            raise InvalidValue(what, fix=fix or help_call) from None

    checked.types_refusals = True  # type: ignore[attr-defined]
    return checked
