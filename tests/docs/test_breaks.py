"""Every break of the table can be applied, and names a test that exists; the rules make breaks."""

import ast
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tools.breaks import HOME, Break, apply, left_out, read

from groupwise.methods import Method

TESTS = Path(__file__).parents[1]


@cache
def functions(file: str) -> set[str]:
    """The names of all functions of a test file."""
    tree = ast.parse((TESTS / f"{file}.py").read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def faults(b: Break) -> list[str]:
    """Why a break cannot be tried."""
    occurrences = (HOME / b.file).read_text().count(b.old)
    file, _, name = b.test.partition("::")
    return [
        *([f"{b}: occurs {occurrences} times: {b.old!r}"] if occurrences != 1 else []),
        *([f"{b}: changes nothing"] if b.old == b.new else []),
        *([f"{b}: {file} has no such test"] if name.partition("[")[0] not in functions(file) else []),
    ]


def test_every_break_changes_one_place_and_names_a_test_that_exists() -> None:
    breaks = read()
    assert len(breaks) > 100
    assert [fault for b in breaks for fault in faults(b)] == []


def test_a_break_is_applied_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    original = apply(Break("a.py", "what", "test", "x = 1", "x = 3"), tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 3\ny = 2\n"
    original.restore()
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 2\n"
    with pytest.raises(ValueError, match="occurs 2 times"):
        apply(Break("a.py", "what", "test", " = ", ""), tmp_path)


@pytest.mark.parametrize("tool", sorted(path.stem for path in (HOME / "tools").glob("*.py")))
def test_a_tool_can_be_imported(tool: str) -> None:
    """No other test imports some of them, and no type checker reads them: a new name in the package broke one."""
    import_module(f"tools.{tool}")


def test_the_rules_break_what_all_methods_share_and_leave_out_names_that_exist() -> None:
    from tools.rule_breaks import (
        KEYWORDS_LEFT_OUT,
        LEFT_OUT,
        SHARED,
        broken,
        changes,
        definitions_of,
        sites_of,
        text_of,
    )

    for thing in SHARED:
        module, definition = definitions_of(thing)[0]
        sites = [(what, node, new) for node in sites_of(definition) for what, new in changes(node, text_of(module))]
        assert list(broken(module, definition, sites, ("grpo",))), thing
    source = "".join(path.read_text() for path in (HOME / "src").rglob("*.py"))
    assert [name for name in LEFT_OUT if f"def {name}(" not in source] == []
    assert {*KEYWORDS_LEFT_OUT} <= {field.name for field in fields(Method)}


def test_a_copy_has_the_rooms_and_no_runs() -> None:
    assert left_out(str(HOME), ["src", "runs", ".git", "docs"]) == {"runs", ".git"}
    assert left_out(str(HOME / "src" / "groupwise"), ["runs", "rollout", "__pycache__"]) == set()
