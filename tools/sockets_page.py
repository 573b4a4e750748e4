"""Write the signatures in docs/sockets.md and the table in docs/parts.md: `python -m tools.sockets_page`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from groupwise.config.registry import fitting_names, parts
from groupwise.core import files_of, part_names

HOME = Path(__file__).resolve().parents[1]
PAGE = HOME / "docs" / "sockets.md"
TABLE = HOME / "docs" / "parts.md"
ROW = re.compile(r"^(\| \w+ \| (\w+) \|[^|]*\| )`.*( \|)$", re.MULTILINE)
"""A row of the table: room, socket, field, and the names of the parts."""
SOURCE = HOME / "src"
ROOMS = ("data", "models", "rollout", "engines", "rewards", "advantages", "objective", "learner", "methods")
"""Rooms that define sockets, in the order of the page."""
OPEN, CLOSE = "<!-- sockets -->", "<!-- /sockets -->"


def sockets_page() -> str:
    """The text of the page, with the current signatures between its marks."""
    head, _, rest = PAGE.read_text("utf-8").partition(OPEN)
    signatures = "\n".join(text for room in ROOMS for file in files_of(f"groupwise.{room}") for text in _file(file))
    return f"{head}{OPEN}\n\n{signatures}\n{CLOSE}{rest.partition(CLOSE)[2]}"


def parts_page() -> str:
    """The text of docs/parts.md, with the current names in each row of its table."""

    def row(match: re.Match[str]) -> str:
        names = ", ".join(f"`{name}`" for name in fitting_names(parts()[match[2]]))
        return f"{match[1]}{names}{match[3]}"

    return ROW.sub(row, TABLE.read_text("utf-8"))


def _file(module: str) -> Iterator[str]:
    """The sockets of a file, under its comments that are headings, or under its path."""
    path = SOURCE / f"{module.replace('.', '/')}.py"
    source = path.read_text("utf-8")
    headings = {
        source[: match.start()].count("\n"): match[1] for match in re.finditer(r"^# (.+)$", source, re.MULTILINE)
    }
    protocols = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and _is_socket(node)]
    for node in protocols:
        for line in [line for line in headings if line < node.lineno]:
            yield f"### {headings.pop(line)}\n"
        if node is protocols[0] and path.stem != "sockets":
            yield f"### `{path.relative_to(SOURCE)}`\n"
        yield _socket(source, node)


def _is_socket(node: ast.ClassDef) -> bool:
    return node.name in parts() and (
        node.name in {*part_names(), "Verifier"}
        or any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases)
    )


def _socket(source: str, node: ast.ClassDef) -> str:
    """The docstring of a Protocol, the parts that fit it, and its members as written in the source."""
    lines = source.splitlines()
    members = [line for member in node.body[1:] for line in [*lines[_first(member) - 1 : member.end_lineno], ""]]
    text = " ".join((ast.get_docstring(node) or "").split())
    names = fitting_names(parts()[node.name]) if node.name in part_names() else []
    fitting = f" Parts: {', '.join(f'`{name}`' for name in names)}." if names else ""
    code = "\n".join([lines[node.lineno - 1], *members]).rstrip()
    return f"**{node.name}**. {text}{fitting}\n\n```python\n{code}\n```\n"


def _first(member: ast.stmt) -> int:
    """The line of a member's first decorator, or its own line."""
    return min([member.lineno, *(decorator.lineno for decorator in getattr(member, "decorator_list", []))])


if __name__ == "__main__":
    PAGE.write_text(sockets_page(), encoding="utf-8")
    TABLE.write_text(parts_page(), encoding="utf-8")
