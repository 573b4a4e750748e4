"""No two parts differ in their names and numbers only: such a pair is one part with a constant."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import groupwise
from groupwise.core import part_names
from groupwise.core.lazy_imports import ROOMS, files_of

SOURCE = Path(groupwise.__file__).parent.parent
Part = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Shape(ast.NodeTransformer):
    """A definition without its name, its docstrings and its literals."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(0)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("_", node.ctx) if node.id == self.name else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, Part):
            node.name = "_" if node.name == self.name else node.name
            node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
        return super().generic_visit(node)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def shape(node: Part) -> str:
    return ast.dump(Shape(node.name).visit(node))


SOCKETS = set(part_names())


def parts() -> Iterator[tuple[str, Part]]:
    """Every class with a socket as its base class, and every function with a socket's decorator."""
    for room in ROOMS:
        for module in files_of(f"groupwise.{room}"):
            for node in ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text("utf-8")).body:
                if isinstance(node, Part) and declared(node) & SOCKETS:
                    yield f"{module}.{node.name}", node


def declared(node: Part) -> set[str]:
    """The base classes of a class, or the sockets of a function's decorators."""
    bases = node.bases if isinstance(node, ast.ClassDef) else node.decorator_list
    names = [ast.unparse(base).partition("[")[0] for base in bases]
    return set(names) if isinstance(node, ast.ClassDef) else {name.capitalize() for name in names}


def test_no_part_is_there_twice() -> None:
    names = defaultdict(list)
    for name, node in parts():
        names[shape(node)].append(name)
    assert sum(map(len, names.values())) > 40
    assert [twins for twins in names.values() if len(twins) > 1] == []


def test_names_docstrings_and_numbers_are_no_difference() -> None:
    one, other, third = (
        ast.parse(text).body[0]
        for text in (
            'def f(b):\n    """One."""\n    return f.x + b.age * 2',
            "def g(b):\n    return g.x + b.age * 3.5",
            "def g(b):\n    return g.x + b.lag * 3.5",
        )
    )
    assert shape(one) == shape(other) != shape(third)
