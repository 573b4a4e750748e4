"""The files of the host that a sandbox shows: Python, its standard library, its shared libraries, named packages."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from groupwise.data import MissingRequirement

PYTHON = "/python/bin/python"
LIBRARIES = "/lib"
PACKAGES = "/packages"
"""Where a sandbox shows them, wherever they lie on the host."""
HIDDEN = ("site-packages", "dist-packages", "ensurepip/_bundled")
"""Directories of the standard library that hold other packages."""

_LOADED = r"""
import ctypes, json, os
place = os.path.dirname(os.__file__) + "/lib-dynload"
for name in sorted(os.listdir(place) if os.path.isdir(place) else ()):
    if not name.startswith(("_tkinter.", "nis.")):
        try:
            ctypes.CDLL(f"{place}/{name}")
        except OSError:
            pass
try:
    ctypes.CDLL("libgcc_s.so.1")
except OSError:
    pass

class Library(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))

names = []
visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Library), ctypes.c_size_t, ctypes.c_void_p)
add = visit(lambda library, *_: names.append(os.fsdecode(library[0].name or b"")) or 0)
ctypes.CDLL(None).dl_iterate_phdr(add, None)
print(json.dumps(names))
"""
"""Loads the extension modules of the standard library, but those for windows and for a directory service: each library
is a mount that every execution pays for. glibc loads libgcc_s by itself when a thread is cancelled."""


class Shown(NamedTuple):
    """A file or directory of the host, and its path in the sandbox, where nothing can write to it."""

    source: str
    target: str


def python() -> tuple[str, str]:
    """The interpreter behind a virtual environment, and its standard library."""
    executable = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(executable), os.path.dirname(os.path.realpath(os.__file__))


def standard() -> str:
    """The path of the standard library in the sandbox: the interpreter looks for it there, relative to itself."""
    library = os.path.relpath(os.path.dirname(os.__file__), sys.base_prefix)
    return os.path.normpath(f"/python/{library}")


def view(packages: tuple[str, ...]) -> list[Shown]:
    """Everything that a sandbox shows; `Environment` for a package that is not installed."""
    executable, library = python()
    shown = [Shown(executable, PYTHON), Shown(library, standard()), *libraries(executable, library)]
    return [*shown, *(one for name in packages for one in package(name))]


def hidden() -> list[str]:
    """Paths in the sandbox that are to be empty."""
    _, library = python()
    return [f"{standard()}/{name}" for name in HIDDEN if os.path.isdir(f"{library}/{name}")]


@cache
def libraries(executable: str, library: str) -> tuple[Shown, ...]:
    """The shared libraries of the interpreter and of its extension modules, as the host's loader finds them.

    All are shown in one directory; the loader itself keeps its path, which the kernel reads from the executable.
    """
    command = [executable, "-I", "-S", "-B", "-c", _LOADED]
    try:
        loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        evidence = f"{error}\n{getattr(error, 'stderr', None) or ''}".strip()[-2000:]
        what = "the interpreter behind this Python does not start, and a sandbox needs it"
        raise MissingRequirement(
            what, evidence=evidence, fix=f"install Python again, or repair {executable}"
        ) from error
    names = [name for name in json.loads(loaded.stdout) if "/" in name and not name.startswith(library)]
    shown = {}
    for name in map(os.path.normpath, names):
        base = os.path.basename(name)
        shown[f"{LIBRARIES}/{base}"] = os.path.realpath(name)
        if base.startswith(("ld-", "ld64.", "ld.so")):
            shown[name] = os.path.realpath(name)
    return tuple(Shown(source, target) for target, source in shown.items())


def package(name: str) -> Iterator[Shown]:
    """The modules of an installed distribution, and its metadata; none of the distributions that it needs."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        fix = f"pip install {name}"
        raise MissingRequirement("a package for the sandbox is not installed", evidence=name, fix=fix) from None
    tops = {PurePosixPath(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    for top in sorted(tops):
        source = Path(str(found.locate_file(top))).resolve()
        if source.exists():
            yield Shown(str(source), f"{PACKAGES}/{top}")
