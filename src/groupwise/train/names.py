"""The package is the registry: parts and methods by their public names, and which socket each part fits."""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from groupwise.data import Usage, name_of
from groupwise.methods import published
from groupwise.train.use import PREFIX

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
    """Everything that a room shows at its front door, by name."""
    rooms = [importlib.import_module(f"groupwise.{room}") for room in ROOMS]
    return {name: getattr(room, name) for room in rooms for name in room.__all__}


def methods() -> dict[str, Any]:
    """The published methods by name."""
    return {method.__name__: method for method in published}


HOMES = {
    "Curriculum": "rollout.curriculum",
    "Strategy": "rollout.strategy",
    "Keep": "rewards.keep",
    "Shaping": "rewards.shaping",
    "Advantage": "advantages.group",
    "Credit": "advantages.credit",
    "Mask": "objective.masks",
    "Aggregate": "objective.aggregates",
    "Weight": "objective.weights",
    "Ratio": "objective.ratios",
    "Surrogate": "objective.surrogates",
    "Penalty": "objective.penalties",
    "Schedule": "methods.schedules",
}
"""Where the parts for a socket are written. Many sockets are called alike, so a signature alone would let them mix."""


def fits(part: Any, socket: Any) -> bool:
    """Whether a part goes into a socket: one of ours by where it is written, another by its methods and arity."""
    if isinstance(part, Named):
        return True
    if socket.__name__ not in HOMES:
        return isinstance(part, socket)
    if maker(part).__module__.startswith("groupwise."):
        return maker(part).__module__ == f"groupwise.{HOMES[socket.__name__]}" and is_part(part, socket)
    return isinstance(part, socket) and not isinstance(part, type) and _same_arity(part, socket)


def fitting_names(socket: Any) -> list[str]:
    """The public names of what fits a socket."""
    if socket.__name__ not in HOMES:
        return [socket.__name__]
    home = f"groupwise.{HOMES[socket.__name__]}"
    return [name for name, part in parts().items() if maker(part).__module__ == home and is_part(part, socket)]


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
    try:
        inspect.signature(part).bind(*range(_arity(socket)))
    except TypeError:
        return False
    body = part if inspect.isfunction(part) else type(part).__call__
    wanted = inspect.unwrap(socket.__call__)
    return inspect.iscoroutinefunction(inspect.unwrap(body)) == inspect.iscoroutinefunction(wanted)


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
