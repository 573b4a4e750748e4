"""Subpackages (rooms) that take their public names from their files' `__all__` and import them on first use."""

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["files_of", "home_of", "names_of", "open_room"]

ROOMS = (
    "data",
    "models",
    "rollout",
    "engines",
    "rewards",
    "advantages",
    "objective",
    "learner",
    "methods",
    "tasks",
    "sandbox",
    "environments",
    "verifiers",
    "config",
    "api",
)
"""The subpackages (rooms) with public names."""

_LISTS = re.compile(r"^(__all__|SOCKET) = (\[.*?\]|\".*?\")$", re.MULTILINE | re.DOTALL)


@cache
def files_of(room: str) -> Mapping[str, Mapping[str, Any]]:
    """The public names (`__all__`) and the `SOCKET` of each file in a subpackage. The files are parsed, not imported.

    `SOCKET` names the Protocol that the parts in a file implement.
    """
    spec = find_spec(room)
    assert spec is not None and spec.origin is not None, f"there is no room {room}"
    folder = Path(spec.origin).parent
    sources = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
    modules = (".".join((room, *path.relative_to(folder).with_suffix("").parts)) for path in sources)
    matches = (_LISTS.findall(path.read_text(encoding="utf-8")) for path in sources)
    return {module: {name: ast.literal_eval(text) for name, text in lists} for module, lists in zip(modules, matches)}


@cache
def names_of(room: str) -> Mapping[str, str]:
    """The module that defines each public name of a subpackage.

    >>> names_of("groupwise.data")["Segments"]
    'groupwise.data.segments'
    """
    return {name: module for module, lists in files_of(room).items() for name in lists.get("__all__", ())}


def home_of(name: str) -> str:
    """The subpackage of a public name; empty if none defines it.

    >>> home_of("Segments")
    'groupwise.data'
    """
    return next((f"groupwise.{room}" for room in ROOMS if name in names_of(f"groupwise.{room}")), "")


class Room(ModuleType):
    """A package that imports its public names on first use."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return sorted(names_of(self.__name__))
        if name not in names_of(self.__name__):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = vars(self)[name] = getattr(opened(names_of(self.__name__)[name]), name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Ignore Python's assignment of a submodule to a name that is public, such as the function `methods.grpo`."""
        if not (isinstance(value, ModuleType) and name in names_of(self.__name__)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *names_of(self.__name__)})


@cache
def opened(name: str) -> ModuleType:
    """Import a module of a room. Its dataclasses raise the typed error for invalid values (see `type_refusals`)."""
    from groupwise.data.refusals import type_refusals  # a module of the first room, which may not be open yet

    module = import_module(name)
    type_refusals(module)
    return module


def open_room(name: str) -> None:
    """Make a subpackage import its public names on first use. Its `__init__` calls this with its `__name__`."""
    sys.modules[name].__class__ = Room
