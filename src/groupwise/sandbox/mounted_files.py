"""The host's files that are mounted in a sandbox: Python, its standard and shared libraries, and named packages."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from groupwise.core import MissingRequirement

PYTHON = "/python/bin/python"
LIBRARIES = "/lib"
PACKAGES = "/packages"
"""The paths of interpreter, shared libraries and packages in the sandbox, independent of those on the host."""
HIDDEN = ("site-packages", "dist-packages", "ensurepip/_bundled")
"""Directories inside the standard library that contain installed packages, which the sandbox must not see."""

_LOADED = r"""
import ctypes, json, os
folder = os.path.dirname(os.__file__) + "/lib-dynload"
for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
    if not name.startswith(("_tkinter.", "nis.")):
        try:
            ctypes.CDLL(f"{folder}/{name}")
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
"""A program that prints the shared libraries of the standard library's extension modules. It leaves out tkinter and
nis: each library is a mount that costs time in every execution. glibc loads libgcc_s when a thread is cancelled."""


class Mount(NamedTuple):
    """A file or directory of the host, and its path in the sandbox, where it is read-only."""

    source: str
    target: str


def python() -> tuple[str, str]:
    """The paths of the interpreter behind a virtual environment and of its standard library."""
    executable = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(executable), os.path.dirname(os.path.realpath(os.__file__))


def standard() -> str:
    """The path of the standard library in the sandbox; the interpreter expects it there, relative to itself."""
    library = os.path.relpath(os.path.dirname(os.__file__), sys.base_prefix)
    return os.path.normpath(f"/python/{library}")


def mounts(packages: tuple[str, ...]) -> list[Mount]:
    """All mounts of a sandbox. `MissingRequirement` for a package that is not installed."""
    executable, library = python()
    interpreter = [Mount(executable, PYTHON), Mount(library, standard()), *libraries(executable, library)]
    return [*interpreter, *(mount for name in packages for mount in package(name))]


def hidden() -> list[str]:
    """Paths in the sandbox that are covered by an empty directory."""
    _, library = python()
    return [f"{standard()}/{name}" for name in HIDDEN if os.path.isdir(f"{library}/{name}")]


@cache
def libraries(executable: str, library: str) -> tuple[Mount, ...]:
    """The shared libraries that the interpreter and its extension modules load, as mounts.

    All are mounted in one directory. The loader also keeps its own path, which the kernel reads from the executable.
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
    sources = {}
    for name in map(os.path.normpath, names):
        base = os.path.basename(name)
        sources[f"{LIBRARIES}/{base}"] = os.path.realpath(name)
        if base.startswith(("ld-", "ld64.", "ld.so")):
            sources[name] = os.path.realpath(name)
    return tuple(Mount(source, target) for target, source in sources.items())


def package(name: str) -> Iterator[Mount]:
    """The files of an installed package as mounts: modules and metadata, without the packages that it requires."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        fix = f"pip install {name}"
        raise MissingRequirement("a package for the sandbox is not installed", evidence=name, fix=fix) from None
    tops = {PurePosixPath(file).parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
    for top in sorted(tops):
        source = Path(str(installed.locate_file(top))).resolve()
        if source.exists():
            yield Mount(str(source), f"{PACKAGES}/{top}")
