"""Subpackages (rooms) that take their public names from their files' `__all__` and import them on first use."""

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["bases_of", "files_of", "home_of", "names_of", "open_room", "part_named", "part_names"]

ROOMS = (
    "core",
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
PART_ROOMS = (
    "data",
    "models",
    "rollout",
    "engines",
    "rewards",
    "advantages",
    "objective",
    "learner",
    "tasks",
    "verifiers",
    "methods",
)
"""The subpackages whose files define components."""

_PUBLIC = re.compile(r"^__all__ = (\[.*?\])$", re.MULTILINE | re.DOTALL)
_BASE = re.compile(
    r"^class (\w+)\((\w+)|^(\w+) = (_?[A-Z]\w*)\(|^@(?:component_of\()?(\w+)\)?\n(?:@.*\n)*(?:async )?def (\w+)",
    re.MULTILINE,
)
"""A class and its first base class, a value and its class, or the first decorator of a function and the function."""


@cache
def files_of(room: str) -> Mapping[str, Sequence[str]]:
    """The public names (`__all__`) of each file in a subpackage that has some. The files are not imported."""
    public = {module: _PUBLIC.search(source) for module, source in sources_of(room).items()}
    return {module: ast.literal_eval(match[1]) for module, match in public.items() if match}


@cache
def bases_of(room: str) -> Mapping[str, str]:
    """What each name in a subpackage is made from, as written.

    That is the first base class of a class, the class of a value, and the first decorator of a function.

    >>> bases = bases_of("groupwise.objective")
    >>> bases["Clip"], bases["token_mean"], bases["group_mean"], bases["unscaled"]
    ('Surrogate', 'aggregate', 'GroupMeanAggregate', 'ClipScale')
    """
    found = [match for source in sources_of(room).values() for match in _BASE.findall(source)]
    return {name or value or function: base or kind or by for name, base, value, kind, by, function in found}


@cache
def sources_of(room: str) -> Mapping[str, str]:
    """The source text of each file in a subpackage, by module."""
    spec = find_spec(room)
    assert spec is not None and spec.origin is not None, f"there is no room {room}"
    folder = Path(spec.origin).parent
    sources = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
    modules = (".".join((room, *path.relative_to(folder).with_suffix("").parts)) for path in sources)
    return {module: path.read_text(encoding="utf-8") for module, path in zip(modules, sources)}


@cache
def names_of(room: str) -> Mapping[str, str]:
    """The module that defines each public name of a subpackage.

    >>> names_of("groupwise.data")["Segments"]
    'groupwise.data.segment_reductions'
    """
    return {name: module for module, names in files_of(room).items() for name in names}


def home_of(name: str) -> str:
    """The subpackage of a public name; empty if none defines it.

    >>> home_of("Segments")
    'groupwise.data'
    """
    return next((f"groupwise.{room}" for room in ROOMS if name in names_of(f"groupwise.{room}")), "")


def part_named(name: str) -> Any:
    """The component, or other public object of its rooms, with this name, or None. Imports only its file."""
    home = next((room for room in PART_ROOMS if name in names_of(f"groupwise.{room}")), None)
    return getattr(import_module(f"groupwise.{home}"), name) if home else None


@cache
def part_names() -> Mapping[str, Sequence[str]]:
    """The names of the package's components by socket. The files are not imported.

    >>> part_names()["DenoisingNoise"]
    ('CoefficientsPreservingNoise', 'DanceGrpoNoise', 'FlowGrpoNoise', 'IntegratedNoise')
    """
    rooms = [f"groupwise.{room}" for room in PART_ROOMS]
    bases = {name: base for room in rooms for name, base in bases_of(room).items()}
    names: dict[str, list[str]] = {}
    for name in sorted(name for room in rooms for name in names_of(room)):
        if socket := _socket(name, bases):
            names.setdefault(socket, []).append(name)
    return MappingProxyType({socket: tuple(parts) for socket, parts in sorted(names.items())})


def _socket(name: str, bases: Mapping[str, str]) -> str:
    """The nearest base class that is a socket, or the socket that the decorator declares; empty without one."""
    while name := bases.get(name, ""):
        name = name.capitalize() if name.islower() else name
        if bases.get(name) == "Protocol" or name == "VerifierSettings":  # the base class of verifiers is no Protocol
            return name
    return ""


class LazyPackage(ModuleType):
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
    from groupwise.core.constructor_errors import type_refusals  # a module of the first room, which may not be open yet

    module = import_module(name)
    type_refusals(module)
    return module


def open_room(name: str) -> None:
    """Make a subpackage import its public names on first use. Its `__init__` calls this with its `__name__`."""
    sys.modules[name].__class__ = LazyPackage
