"""Write the stubs of the rooms and of the package, which resolve names lazily, for editors and type checkers.

python tools/front_doors.py
"""

from pathlib import Path

from groupwise.data.rooms import ROOMS, files_of, names_of

SOURCE = Path(__file__).resolve().parents[1] / "src" / "groupwise"
HEAD = "# Made by tools/front_doors.py from the `__all__` of each file.\n"


def stub(room: str) -> str:
    """The text of a room's `__init__.pyi`."""
    files = files_of(f"groupwise.{room}").items()
    lines = (f"from {module} import {name} as {name}" for module, names in files for name in names)
    return HEAD + "\n".join(lines) + "\n"


def package_stub() -> str:
    """The text of the package's `__init__.pyi`: every public name of every room."""
    names = {name: module for room in ROOMS for name, module in names_of(f"groupwise.{room}").items()}
    lines = (
        f"from {module} import {name} as {name}" for name, module in sorted(names.items(), key=lambda pair: pair[1])
    )
    return HEAD + "\n".join(lines) + "\n\n__version__: str\n"


if __name__ == "__main__":
    for room in ROOMS:
        (SOURCE / room / "__init__.pyi").write_text(stub(room), encoding="utf-8")
    (SOURCE / "__init__.pyi").write_text(package_stub(), encoding="utf-8")
