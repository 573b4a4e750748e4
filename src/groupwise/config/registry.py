"""The package is the registry: parts and methods by their public names, and which socket each part fits."""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from torch import Tensor

from groupwise.config.user_code import PREFIX
from groupwise.data import Usage, files_of, name_of
from groupwise.methods import published

ROOMS = ("data", "rollout", "rewards", "advantages", "objective", "learner", "methods")
"""Where parts live; the map of names is built when the first is looked up."""


@dataclass(frozen=True, slots=True)
class Named:
    """A part from a file that is not in use: it can be shown and compared, and does nothing."""

    part: str
    constants: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *_: Any) -> Any:
        raise Usage(
            f"{self.part} was read by its name only", fix=f"add --use {self.part.partition(':')[0]}.py to the command"
        )

    init = draw = observe = __call__


@cache
def parts() -> Mapping[str, Any]:
    """Every public name of the rooms, with what it names."""
    rooms = [importlib.import_module(f"groupwise.{room}") for room in ROOMS]
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


def methods() -> dict[str, Any]:
    """The published methods by name."""
    return {method.__name__: method for method in published}


@cache
def sockets() -> Mapping[str, tuple[str, ...]]:
    """The files in which the parts for a socket are written, by the socket's name.

    Many sockets are called alike, so a signature alone would let their parts mix: a file says its `SOCKET`.
    """
    found: dict[str, tuple[str, ...]] = {}
    for room in ROOMS:
        for module, lists in files_of(f"groupwise.{room}").items():
            if "SOCKET" in lists:
                found[lists["SOCKET"]] = (*found.get(lists["SOCKET"], ()), module)
    return found


def fits(part: Any, socket: Any) -> bool:
    """Whether a part goes into a socket: by the socket that its file names, else by its methods and arity."""
    if isinstance(part, Named):
        return True
    if socket.__name__ not in sockets():
        return isinstance(part, socket)
    home = maker(part).__module__
    if any(home in modules for modules in sockets().values()):
        return home in sockets()[socket.__name__] and is_part(part, socket)
    ours = home.startswith("groupwise.")
    if not isinstance(part, socket) or (isinstance(part, type) and not (ours and is_dataclass(part))):
        return False
    return _same_arity(part, socket) and (not ours or _same_result(part, socket))


def fitting_names(socket: Any) -> list[str]:
    """The public names of what fits a socket."""
    homes = sockets().get(socket.__name__)
    if homes is None:
        return [socket.__name__]
    return [name for name, part in parts().items() if maker(part).__module__ in homes and is_part(part, socket)]


def maker(part: Any) -> Any:
    """What was written down: a function or class itself, the class of anything else."""
    return part if inspect.isfunction(part) or isinstance(part, type) else type(part)


def is_part(thing: Any, socket: Any) -> bool:
    """A function as the socket wants it, or a dataclass; not what else stands in the same file."""
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
    wanted = inspect.unwrap(socket.__call__)
    return inspect.iscoroutinefunction(inspect.unwrap(call)) == inspect.iscoroutinefunction(wanted)


def _same_result(part: Any, socket: Any) -> bool:
    """Whether the part is annotated with the shape that the socket returns, or with none at all."""
    if "__call__" not in vars(socket):
        return True
    given, wanted = (_call_of(x).__annotations__.get("return", Tensor) for x in (part, socket))
    return given is Tensor or getattr(given, "dim_str", given) == getattr(wanted, "dim_str", wanted)


def _call_of(part: Any) -> Any:
    """A function itself, or `__call__` of a class, which takes the instance first; None where there is none."""
    if inspect.isfunction(part):
        return part
    return next((vars(c)["__call__"] for c in maker(part).__mro__ if "__call__" in vars(c)), None)


def public_name(part: Any) -> str:
    """The name by which text finds a part again. Raises `Usage` for one that has none, such as a lambda."""
    if isinstance(part, Named):
        return part.part
    for name, known in parts().items():
        if known is part or (is_dataclass(part) and type(known) is type(part) and known == part):
            return name
    if parts().get(type(part).__name__) is type(part):
        return type(part).__name__
    home = maker(part)
    if home.__module__.startswith(PREFIX) and "<" not in home.__qualname__:
        return f"{home.__module__.removeprefix(PREFIX)}:{home.__qualname__}"
    raise Usage(
        f"{name_of(part)} has no name that text could find again", fix="put it in a file and name it with --use"
    )


def near(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(known)}"


def near_parts(name: str, socket: Any) -> list[str]:
    names = fitting_names(socket)
    return get_close_matches(name, names, n=3, cutoff=0.5) or names
