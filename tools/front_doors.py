"""Write the stubs of the rooms and of the package, which resolve names lazily, for editors and type checkers.

python tools/front_doors.py
"""

from pathlib import Path
from textwrap import fill

import groupwise
from groupwise.core.lazy_imports import ROOMS, files_of, home_of, part_names
from groupwise.methods.families import method_files

SOURCE = Path(__file__).resolve().parents[1] / "src" / "groupwise"
HEAD = "# Made by tools/front_doors.py from the `__all__` of each file.\n"
TYPES = {"parts": "Mapping[str, Sequence[str]]", "__version__": "str"}
"""The type of each name of the package that no room defines."""


def stub(room: str) -> str:
    """The text of a room's `__init__.pyi`."""
    files = files_of(f"groupwise.{room}").items()
    lines = (f"from {module} import {name} as {name}" for module, names in files for name in sorted(names, key=order))
    return HEAD + "\n".join(lines) + "\n"


def order(name: str) -> tuple[bool, bool, str]:
    """The order of imports: constants, classes, functions, each without regard to case."""
    return not name.isupper(), not name[0].isupper(), name.lower()


def package_stub() -> str:
    """The text of the package's `__init__.pyi`: the names of `groupwise.__all__`, the methods and the parts."""
    names = {*groupwise.__all__, *method_files(), *(name for names in part_names().values() for name in names)}
    rooms: dict[str, list[str]] = {}
    for name in sorted(names - TYPES.keys()):
        rooms.setdefault(home_of(name), []).append(f"{name}\xa0as\xa0{name}")
    lines = (f"from {room} import (\n{_wrapped(rooms[room])}\n)\n" for room in sorted(rooms))
    types = "".join(f"{name}: {kind}\n" for name, kind in TYPES.items())
    head = f"{HEAD}# ruff: noqa: I001\n# fmt: off\nfrom collections.abc import Mapping, Sequence\n\n"
    return head + "".join(lines) + "\n" + types


def _wrapped(names: list[str]) -> str:
    """Names with commas in lines of at most 120 letters, broken between names only."""
    return fill(", ".join(names), 120, initial_indent="    ", subsequent_indent="    ").replace("\xa0", " ")


if __name__ == "__main__":
    for room in ROOMS:
        (SOURCE / room / "__init__.pyi").write_text(stub(room), encoding="utf-8")
    (SOURCE / "__init__.pyi").write_text(package_stub(), encoding="utf-8")
