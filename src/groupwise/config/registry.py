"""Looks up components and methods by name, and the Protocol (socket) that each component implements."""

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, ClassVar, Literal, Protocol

from groupwise.config.user_code import PREFIX
from groupwise.core import Usage, files_of, part_named, part_names
from groupwise.core.lazy_imports import PART_ROOMS, opened
from groupwise.data import TaskSettings, VerifierSettings, name_of
from groupwise.methods.families import method_files


@dataclass(frozen=True, slots=True)
class UnloadedPart:
    """Stands for a component in a user's file that is not loaded. It can be printed; calling it raises `Usage`."""

    part: str
    arguments: tuple[tuple[str, Any], ...] = ()
    max_logprob_diff: ClassVar[Literal["by_dtype"]] = "by_dtype"  # an EngineSettings has it

    def __call__(self, *_: Any) -> Any:
        raise Usage(
            f"the file of {self.part} is not loaded", fix=f"add --use {self.part.partition(':')[0]}.py to the command"
        )

    init = draw = observe = build = __call__


@dataclass(frozen=True, slots=True)
class UnloadedVerifier(UnloadedPart, VerifierSettings):
    """Stands for a verifier in a user's file that is not loaded."""


@dataclass(frozen=True, slots=True)
class UnloadedTask(UnloadedPart, TaskSettings):
    """Stands for a task in a user's file that is not loaded."""

    @property
    def label(self) -> str:
        return self.part


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """Stands for a part that cannot be read, so that later checks find no other error than this one."""

    error: Usage

    def build(self, _: Any) -> Any:
        raise self.error


@dataclass(frozen=True, slots=True)
class UnreadableVerifier(UnreadablePart, VerifierSettings):
    """Stands for a verifier that cannot be read."""


@dataclass(frozen=True, slots=True)
class UnreadTask(UnreadablePart, TaskSettings):
    """Stands for a task that cannot be read."""

    @property
    def label(self) -> str:
        return "task"


UNLOADED: Mapping[Any, type[UnloadedPart]] = {VerifierSettings: UnloadedVerifier, TaskSettings: UnloadedTask}
UNREAD: Mapping[Any, Any] = {VerifierSettings: UnreadableVerifier, TaskSettings: UnreadTask}
"""The stand-ins for verifiers and tasks: in files that are not loaded, and invalid ones."""


@cache
def parts() -> Mapping[str, Any]:
    """All public objects of the rooms with components, by name; the components of the package are among them."""
    rooms = [importlib.import_module(f"groupwise.{room}") for room in PART_ROOMS]
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


class PublishedMethods(Mapping[str, Any]):
    """All published methods by name, in display order. A name imports only its file; the order imports all of them."""

    def __getitem__(self, name: str) -> Any:
        return getattr(opened(method_files()[name]), name)

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


def socket_of(part: Any) -> type | None:
    """The socket that a component declares: its class's nearest base class that is a socket, or its decorator's."""
    home = definition_of(part)
    if inspect.isfunction(home):
        return vars(home).get("socket")
    return next((base for base in home.__mro__ if is_socket(base)), None)


def is_socket(kind: type) -> bool:
    """Whether a class is a socket: a Protocol, or the base class of verifiers."""
    return Protocol in kind.__bases__ or kind is VerifierSettings


def fits(part: Any, socket: Any) -> bool:
    """Whether a component is of a socket: by its base class or decorator.

    The object of a user's class without a base class is of each socket whose methods it has, with as many arguments.
    """
    if isinstance(part, UnloadedPart) or socket is Any:
        return True
    home = definition_of(part)
    if not is_socket(socket):
        return issubclass(part, socket) if isinstance(part, type) else isinstance(part, socket)
    if inspect.isfunction(home):
        return socket_of(part) is socket
    if socket in home.__mro__:
        return True
    if (
        socket is VerifierSettings
        or socket_of(part)
        or home.__module__.startswith("groupwise.")
        or isinstance(part, type)
    ):
        return False
    return isinstance(part, socket) and _same_arity(part, socket)


def fitting_names(socket: Any) -> Sequence[str]:
    """The names of the package's components of a socket."""
    return part_names().get(socket.__name__, (socket.__name__,))


def definition_of(part: Any) -> Any:
    """Where a component is defined: the function or class itself, or the class of an instance."""
    return part if inspect.isfunction(part) or isinstance(part, type) else type(part)


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
    for name in names.get(home.__module__, ()):
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


def closest_parts(name: str, socket: Any) -> Sequence[str]:
    """The components of this Protocol whose names are closest to `name`, or all of them if none is close."""
    names = fitting_names(socket)
    return get_close_matches(name, names, n=3, cutoff=0.5) or names
