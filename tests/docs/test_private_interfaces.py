"""The page of private interfaces lists all of them, and each exists in the installed packages."""

import ast
import importlib
import inspect
import re
from functools import reduce
from typing import Any

import pytest
import torch

from tests.docs.test_pages import HOME

SOURCE = HOME / "src" / "groupwise"
ROWS = re.findall(r"^\| (`.*|routers.*) \| (`[^|]*`) \|[^|]*\|[^|]*\| (`[^|]*`) \|$",
                  (HOME / "docs/private-interfaces.md").read_text(), re.M)  # fmt: skip
PRIVATE = re.compile(r"_[a-z]\w*")
DOCUMENTED = {"_exit", "_asdict"}
"""Names of Python's own documentation that begin with `_`."""
PATHS = [name for row in ROWS for name in re.findall(r"`((?:torch|transformers|threading|sys)\.[\w.]+)`", row[0])]


def is_private(name: str) -> bool:
    return PRIVATE.fullmatch(name) is not None and name not in DOCUMENTED


def names(tree: ast.AST) -> set[str]:
    """The private names that code reads from another object: `a._b`, `from a import _b`, `getattr(a, "_b")`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".")}
            found |= set((getattr(node, "module", None) or "").split("."))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            found |= {x.value for x in node.args if isinstance(x, ast.Constant) and isinstance(x.value, str)}
    return {name for name in found if is_private(name)}


def own(tree: ast.AST) -> set[str]:
    """The private names that code defines: functions, classes, fields, and attributes of `self`."""
    defined = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    return defined


def test_the_page_lists_every_private_name_of_another_package() -> None:
    trees = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    ours = set().union(*map(own, trees.values()))
    used = {(name, file) for file, tree in trees.items() for name in names(tree) - ours}
    listed = {
        (name, file)
        for interfaces, files, _ in ROWS
        for path in re.findall(r"`([\w.]+)`", interfaces)
        for name in path.split(".")
        if is_private(name)
        for file in re.findall(r"`([\w/.]+)`", files)
        if name in (SOURCE / file).read_text()
    }
    assert used == listed


def test_each_row_names_tests_that_exist() -> None:
    assert len(ROWS) == (HOME / "docs/private-interfaces.md").read_text().count("\n| ") - 1
    for _, _, tests in ROWS:
        for file, test in re.findall(r"`([\w/]+)::(\w+)`", tests):
            assert f"def {test}(" in (HOME / "tests" / f"{file}.py").read_text()


def member(parent: Any, name: str) -> Any:
    """An attribute, or the annotation of one that only instances have."""
    return getattr(parent, name, None) or inspect.get_annotations(parent)[name]


@pytest.mark.parametrize("path", PATHS)
def test_the_interface_exists(path: str) -> None:
    if ".mkldnn." in path and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    *modules, name = path.split(".")
    rest = [name]
    while not importable(modules):
        rest.insert(0, modules.pop())
    assert reduce(member, rest, importlib.import_module(".".join(modules))) is not None


def importable(modules: list[str]) -> bool:
    try:
        importlib.import_module(".".join(modules))
    except ImportError:
        return False
    return True


def test_layers_call_the_function_that_recomputes_them() -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer

    source = inspect.getsource(GradientCheckpointingLayer)
    assert "self.gradient_checkpointing and self.training" in source
    assert "self._gradient_checkpointing_func(" in source
