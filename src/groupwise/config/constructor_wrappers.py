"""Wraps the package's constructors and calls, so that wrong arguments raise an error with the call to write."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from types import FrameType, FunctionType
from typing import Any

from groupwise.core import GroupwiseError, InvalidValue

CALLABLES = ("groupwise.methods.", "groupwise.api.")
"""The rooms whose functions are called with settings. Functions of other rooms are components, which are values."""
MARK = "answers_wrong_arguments"
COPIES = ("dataclasses", "copy")
"""Modules of Python that call a constructor for their own caller."""


def answering(name: str, value: Any) -> Any:
    """A public object of `gw`, whose constructor or call answers wrong arguments. Any other value is returned as it is.

    A class keeps its identity: its `__init__` is wrapped, once.
    """
    if isinstance(value, type) and is_dataclass(value) and value.__module__.startswith("groupwise."):
        if "__init__" in vars(value) and not hasattr(value.__init__, MARK):
            value.__init__ = _answers(name, value.__init__, bound=1)
    elif isinstance(value, FunctionType) and value.__module__.startswith(CALLABLES) and takes_names(value):
        return _answers(name, value, bound=0)
    return value


def takes_names(function: Callable[..., Any]) -> bool:
    """Whether a function has arguments by name only, as methods and calls have and components do not."""
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    return inspect.Parameter.KEYWORD_ONLY in kinds


def _answers(name: str, call: Callable[..., Any], bound: int) -> Callable[..., Any]:
    """Wrap a call. `bound` of its first parameters are passed by Python, as `self`.

    The reader of a recipe builds the same classes for the command line, so an error of a constructor advises in Python
    only where the code of a program called it.
    """

    @wraps(call)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except GroupwiseError as error:
            frame = inspect.currentframe()
            if not (bound and from_package(frame and frame.f_back)):
                from groupwise.config.constructor_advice import spell_constructor

                spell_constructor(error, name)
            raise
        except TypeError:
            if wrong := wrong_arguments(name, call, args, options, bound):
                raise wrong from None
            raise

    setattr(checked, MARK, True)
    return checked


def from_package(caller: FrameType | None) -> bool:
    """Whether code of this package called, perhaps by `dataclasses.replace`."""
    while caller and caller.f_globals.get("__name__") in COPIES:
        caller = caller.f_back
    return bool(caller) and str(caller.f_globals.get("__name__")).startswith("groupwise.")


def wrong_arguments(
    name: str, call: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], bound: int
) -> InvalidValue | None:
    """The error for arguments that do not fit a signature; None if they do."""
    from groupwise.config.unknown_argument_advice import PublicCallable

    signature = inspect.signature(call)
    try:
        signature.bind(*args, **options)
        return None
    except TypeError as error:
        what = str(error)
    named = dict([*signature.parameters.items()][bound:])
    constructor = PublicCallable(name, named)
    unknown = [word for word in options if word not in named]
    if not unknown:
        return InvalidValue(f"gw.{name}(): {what}", fix=constructor.signature())
    fix = "\n".join(constructor.advice(word, options[word]) for word in unknown)
    return InvalidValue(f"gw.{name} has no argument {' and no '.join(map(repr, unknown))}", fix=fix)
