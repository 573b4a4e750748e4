"""Write the stub of each room. A room resolves its names lazily; editors and type checkers read the stub.

python tools/front_doors.py
"""

from pathlib import Path

from groupwise.data.rooms import files_of

SOURCE = Path(__file__).resolve().parents[1] / "src" / "groupwise"
ROOMS = (
    "data",
    "models",
    "rollout",
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
)
HEAD = "# Made by tools/front_doors.py from the `__all__` of each file.\n"


def stub(room: str) -> str:
    """The text of a room's `__init__.pyi`."""
    lists = {module: names["__all__"] for module, names in files_of(f"groupwise.{room}").items() if "__all__" in names}
    lines = (f"from {module} import {name} as {name}" for module, names in lists.items() for name in names)
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for room in ROOMS:
        (SOURCE / room / "__init__.pyi").write_text(stub(room), encoding="utf-8")
