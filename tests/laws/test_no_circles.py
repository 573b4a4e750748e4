"""No circle of files, also through the doors of rooms and through module names in strings.

`lint-imports` checks files and folders, but it takes `from groupwise.models import find_model` for an import of the
door, and does not see `import_module("groupwise.models.model_json_files")`.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import groupwise
from groupwise.core.lazy_imports import ROOMS, names_of

HOME = Path(groupwise.__file__).parent
FILES = {
    ".".join(("groupwise", *path.relative_to(HOME).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in HOME.rglob("*.py")
}
"""The file of each module and package by its dotted name."""
DOORS = {f"groupwise.{room}": names_of(f"groupwise.{room}") for room in ROOMS}
DOORS["groupwise"] = {name: module for names in DOORS.values() for name, module in names.items()}


@cache
def trees() -> dict[str, ast.Module]:
    """The parsed files. Not at import: each worker imports all tests."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def module_strings(tree: ast.AST) -> list[str]:
    """The dotted names of modules of this package in strings, docstrings left out."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docs)
    return [text for text in strings if isinstance(text, str) and text != "groupwise" and text in FILES]


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports anywhere, also in functions; for a public name of a room, its file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else DOORS.get(node.module, {}).get(alias.name, node.module)


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one circle of imports; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_file_imports_itself_by_way_of_others() -> None:
    modules = {name for name, path in FILES.items() if path.name != "__init__.py"}
    graph = {name: {*imported(trees()[name])} & modules - {name} for name in modules}
    assert sum(map(len, graph.values())) > 2000 and circle(graph) == []


def test_no_module_of_this_package_is_named_in_a_string() -> None:
    assert {name: strings for name, tree in trees().items() if (strings := module_strings(tree))} == {}


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("def f():\n    from groupwise.models import find_model", "groupwise.models.model_directories"),
        ("from groupwise import Clip", "groupwise.objective.surrogates"),
        ("from groupwise.models import lora", "groupwise.models.lora"),
        ("import groupwise.models.lora", "groupwise.models.lora"),
    ],
)
def test_imports_in_functions_and_through_doors_are_seen(code: str, module: str) -> None:
    assert [*imported(ast.parse(code))] == [module]
    assert module_strings(ast.parse(f'"""{module}"""\nx = ["{module}"]')) == [module]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circle({"a": {"b", "c"}, "b": {"c"}})
