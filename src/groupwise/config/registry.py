"""Looks up components (parts) and methods by name, and the Protocol (socket) that each component implements."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar, Literal

from torch import Tensor

from groupwise.config.user_code import PREFIX
from groupwise.data import Usage, VerifierKind, files_of, name_of, names_of
from groupwise.methods.families import method_files

ROOMS = (
    "data",
    "models",
    "rollout",
    "engines",
    "rewards",
    "advantages",
    "objective",
    "learner",
    "verifiers",
    "methods",
)
"""The subpackages whose files define components."""


@dataclass(frozen=True, slots=True)
class UnloadedPart:
    """Stands for a component in a user's file that is not loaded. It can be printed; calling it raises `Usage`."""

    part: str
    constants: tuple[tuple[str, Any], ...] = ()
    max_gap: ClassVar[Literal["by_dtype"]] = "by_dtype"  # an EngineKind has it

    def __call__(self, *_: Any) -> Any:
        raise Usage(
            f"the file of {self.part} is not loaded", fix=f"add --use {self.part.partition(':')[0]}.py to the command"
        )

    init = draw = observe = build = __call__


@dataclass(frozen=True, slots=True)
class UnloadedVerifier(UnloadedPart, VerifierKind):
    """Stands for a verifier in a user's file that is not loaded."""


@dataclass(frozen=True, slots=True)
class UnreadVerifier(VerifierKind):
    """Stands for a verifier that cannot be read, so that later checks find no other error than this one."""

    error: Usage

    def build(self, grading: Any) -> Any:
        raise self.error


@cache
def parts() -> Mapping[str, Any]:
    """All public objects of the `ROOMS`, by name; the components of the package are among them."""
    rooms = [importlib.import_module(f"groupwise.{room}") for room in ROOMS]
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


def part_named(name: str) -> Any:
    """The component, or other public object of the `ROOMS`, with this name, or None. Imports only its file."""
    home = next((room for room in ROOMS if name in names_of(f"groupwise.{room}")), None)
    return getattr(importlib.import_module(f"groupwise.{home}"), name) if home else None


class PublishedMethods(Mapping[str, Any]):
    """All published methods by name, in display order. A name imports only its file; the order imports all of them."""

    def __getitem__(self, name: str) -> Any:
        return getattr(importlib.import_module(method_files()[name]), name)

    def __contains__(self, name: object) -> bool:
        return name in method_files()

    def __iter__(self) -> Iterator[str]:
        from groupwise.methods import published

        return (method.__name__ for method in published)

    def __len__(self) -> int:
        return len(method_files())


def methods() -> Mapping[str, Any]:
    """All published methods by name."""
    return PublishedMethods()


@cache
def sockets() -> Mapping[str, tuple[str, ...]]:
    """The modules that define components for a Protocol (socket), by the Protocol's name.

    Many sockets have the same signature, so each module declares its socket in the constant `SOCKET`.
    """
    modules: dict[str, tuple[str, ...]] = {}
    for room in ROOMS:
        for module, lists in files_of(f"groupwise.{room}").items():
            if "SOCKET" in lists:
                modules[lists["SOCKET"]] = (*modules.get(lists["SOCKET"], ()), module)
    return modules


def fits(part: Any, socket: Any) -> bool:
    """Whether a component implements a Protocol (socket): as its module declares, else by methods and arguments."""
    if isinstance(part, UnloadedPart) or socket is Any:
        return True
    if socket.__name__ not in sockets() or socket is VerifierKind:
        return isinstance(part, socket) or (isinstance(part, type) and issubclass(part, socket))
    home = definition_of(part).__module__
    if any(home in modules for modules in sockets().values()):
        return home in sockets()[socket.__name__] and is_part(part, socket)
    in_package = home.startswith("groupwise.")
    if not isinstance(part, socket) or (isinstance(part, type) and not (in_package and is_dataclass(part))):
        return False
    return _same_arity(part, socket) and (not in_package or _same_result(part, socket))


def fitting_names(socket: Any) -> list[str]:
    """The public names of the components that implement a Protocol."""
    homes = sockets().get(socket.__name__)
    if homes is None:
        return [socket.__name__]
    return [name for name, part in parts().items() if definition_of(part).__module__ in homes and is_part(part, socket)]


def definition_of(part: Any) -> Any:
    """Where a component is defined: the function or class itself, or the class of an instance."""
    return part if inspect.isfunction(part) or isinstance(part, type) else type(part)


def is_part(thing: Any, socket: Any) -> bool:
    """Whether an object can be a component: a dataclass, or a function with the Protocol's number of arguments."""
    if socket is VerifierKind:
        return isinstance(thing, type) and issubclass(thing, socket)
    if inspect.isfunction(thing):
        return len(inspect.signature(thing).parameters) == _arity(socket)
    return is_dataclass(thing)


def _arity(socket: Any) -> int:
    return len(inspect.signature(socket.__call__).parameters) - 1


def _same_arity(part: Any, socket: Any) -> bool:
    if "__call__" not in vars(socket):
        return True
    call = _call_of(part)
    if call is None:
        return False
    try:
        inspect.signature(call).bind(*range(_arity(socket) + (call is not part)))
    except TypeError:
        return False
    expected = inspect.unwrap(socket.__call__)
    return inspect.iscoroutinefunction(inspect.unwrap(call)) == inspect.iscoroutinefunction(expected)


def _same_result(part: Any, socket: Any) -> bool:
    """Whether a component's return annotation has the shape that the Protocol requires, or no shape at all."""
    if "__call__" not in vars(socket):
        return True
    result, expected = (_call_of(x).__annotations__.get("return", Tensor) for x in (part, socket))
    return result is Tensor or getattr(result, "dim_str", result) == getattr(expected, "dim_str", expected)


def _call_of(part: Any) -> Any:
    """A function itself, or the unbound `__call__` of a class; None if it has none."""
    if inspect.isfunction(part):
        return part
    return next((vars(c)["__call__"] for c in definition_of(part).__mro__ if "__call__" in vars(c)), None)


def public_name(part: Any) -> str:
    """The name by which TOML refers to a component. Raises `Usage` for one without a name, such as a lambda.

    The file that defines a component, or its class, lists its name; so only that file is searched.
    """
    if isinstance(part, UnloadedPart):
        return part.part
    home = definition_of(part)
    names = files_of(home.__module__.rpartition(".")[0]) if home.__module__.startswith("groupwise.") else {}
    for name in names.get(home.__module__, {}).get("__all__", ()):
        candidate = getattr(sys.modules[home.__module__], name)
        if candidate is part or (is_dataclass(part) and type(candidate) is type(part) and candidate == part):
            return name
    if part_named(type(part).__name__) is type(part):
        return type(part).__name__
    if home.__module__.startswith(PREFIX) and "<" not in home.__qualname__:
        return f"{home.__module__.removeprefix(PREFIX)}:{home.__qualname__}"
    raise Usage(
        f"{name_of(part)} is a component without a name that a recipe can use",
        fix="define it in a file and load that with --use",
    )


def class_name(plain: str) -> str:
    """The name of the class of a verifier that is named in lower case, as in `verifier = "math_dapo"`.

    >>> class_name("math_dapo"), class_name("MathDapo")
    ('MathDapo', 'MathDapo')
    """
    return "".join(word[:1].upper() + word[1:] for word in plain.split("_"))


def plain_name(name: str) -> str:
    """The name of a verifier's class in lower case, as `class_name` reads it.

    >>> plain_name("MathDrGrpo")
    'math_dr_grpo'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def closest_parts(name: str, socket: Any) -> list[str]:
    """The components of this Protocol whose names are closest to `name`, or all of them if none is close."""
    names = fitting_names(socket)
    return get_close_matches(name, names, n=3, cutoff=0.5) or names
