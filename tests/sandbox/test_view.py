"""The files that a sandbox shows: Python wherever it lies, its standard library, and named packages."""

import os
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from groupwise.core import MissingRequirement
from groupwise.sandbox import ExecutionInput, Sandbox
from groupwise.sandbox import mounted_files as sandbox_view
from tests.sandbox.boxes import needed, value

LIGHT = "pylatexenc"


# The standard library and nothing else


def test_a_sandbox_shows_python_and_no_other_file_of_the_host(sandbox):
    look = """
import os, sys
def f():
    files = {place: sorted(os.listdir(place)) for place in ("/", "/dev")}
    return files, sys.path, sys.prefix, [d for d, _, _ in os.walk("/") if d.endswith("-packages") and os.listdir(d)]
"""
    files, path, prefix, packages = value(sandbox, look)
    assert set(files["/"]) <= {"server.py", "tmp", "dev", "lib", "lib64", "python"}
    assert files["/dev"] == ["null", "random", "urandom", "zero"]
    assert prefix == "/python" and all(entry.startswith("/python/") for entry in path)
    assert packages == []


def test_no_package_of_the_host_can_be_imported(sandbox):
    look = """
import importlib.util, sys
def f(places, names):
    sys.path += places
    return [name for name in names if importlib.util.find_spec(name)]
"""
    library = Path(sandbox_view.python()[1])
    places = [
        str(library / "site-packages"),
        f"{sandbox_view.standard()}/site-packages",
        "/usr/lib/python3/dist-packages",
    ]
    assert value(sandbox, look, places, ["pip", "setuptools", "torch", "sympy", "groupwise", "pytest"]) == []


def test_nothing_that_is_shown_can_be_written(sandbox):
    look = """
import os
def f():
    written = []
    for place, _, _ in os.walk("/"):
        try:
            open(place + "/mark", "w").close()
            written.append(place)
        except OSError:
            pass
    return written
"""
    assert value(sandbox, look) == ["/tmp"]


def test_every_extension_module_of_the_standard_library_can_be_imported(sandbox):
    library = Path(sandbox_view.python()[1])
    names = {file.name.partition(".")[0] for file in (library / "lib-dynload").glob("*.so")}
    names = sorted(name for name in names if not name.startswith(("_test", "_tkinter", "nis", "_xxtest", "xxlimited")))
    look = """
import importlib
def f(names):
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    return missing
"""
    assert names and value(sandbox, look, names) == []


# Python under a temporary directory


def test_python_may_lie_under_a_temporary_directory(monkeypatch, tmp_path):
    needed()
    executable, library = sandbox_view.python()
    prefix = tmp_path / "python"
    copy = prefix / "bin" / "python3"
    copy.parent.mkdir(parents=True)
    shutil.copy(executable, copy)
    lean = shutil.ignore_patterns("test*", "site-packages", "idlelib", "lib2to3", "config-*", "ensurepip", "pydoc_data")
    shutil.copytree(library, prefix / os.path.relpath(sandbox_view.standard(), "/python"), ignore=lean)
    paths = str(copy), str(prefix / os.path.relpath(sandbox_view.standard(), "/python"))
    monkeypatch.setattr(sandbox_view, "python", lambda: paths)
    sandbox = Sandbox(boxes=1)
    try:
        assert value(sandbox, "import sqlite3, sys\ndef f(): return sys.prefix") == "/python"
    finally:
        sandbox.close()


def test_an_interpreter_that_does_not_start_is_named(monkeypatch, tmp_path):
    needed()
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    broken.chmod(0o755)
    library = sandbox_view.python()[1]
    for executable, words in ((broken, "no such library"), (tmp_path / "absent", "No such file")):
        monkeypatch.setattr(sandbox_view, "python", lambda: (str(executable), library))  # noqa: B023
        with pytest.raises(MissingRequirement) as caught:
            Sandbox(boxes=1).info()
        assert words in caught.value.evidence and str(executable) in caught.value.fix


# Trusted code that every box loads once

RULES = """
from pylatexenc.latexwalker import LatexWalker
COUNT = 0
def nodes(text): return len(LatexWalker(text).get_latex_nodes()[0])
def count():
    global COUNT
    COUNT += 1
    return COUNT
"""


@pytest.fixture(scope="module")
def stocked():
    needed()
    rules = {
        "ours.rules": RULES,
        "ours.judge": "from ours.rules import nodes\ndef judge(a, b): return nodes(a) == nodes(b)",
    }
    pool = Sandbox(boxes=1, packages=(LIGHT,), imports=("pylatexenc.latexwalker",), preload=rules)
    yield pool
    pool.close()


def test_packages_are_shown_and_imported_before_the_first_execution(stocked):
    look = """
import sys
before = set(sys.modules)
def f():
    import os
    from importlib.metadata import version
    from importlib.util import find_spec
    hidden = find_spec("sympy") is None
    return "pylatexenc.latexwalker" in before, sorted(os.listdir("/packages")), version("pylatexenc"), hidden
"""
    number = version(LIGHT)
    assert value(stocked, look) == [True, [LIGHT, f"{LIGHT}-{number}.dist-info"], number, True]


def test_preloaded_code_is_called_with_text_as_data(stocked):
    judge = "from ours.judge import judge"
    programs = [
        ExecutionInput(judge, "judge", (r"\frac{1}{2}", b)) for b in (r"\sqrt{x}", r"a \alpha", "__import__('os')")
    ]
    assert [execution.return_value for execution in stocked.run(programs)] == [True, False, True]


def test_an_execution_does_not_change_preloaded_code_for_the_next(stocked):
    count = ExecutionInput("from ours.rules import count", "count")
    assert [execution.return_value for execution in stocked.run([count] * 3)] == [1, 1, 1]


def test_without_a_sandbox_the_same_code_is_loaded():
    unsafe = Sandbox(boxes=1, unsafe=True, packages=(LIGHT,), preload={"rules": RULES})
    try:
        assert unsafe.run([ExecutionInput("from rules import nodes", "nodes", ("x",))])[0].return_value == 1
    finally:
        unsafe.close()


def test_a_package_that_is_missing_and_code_that_raises_are_named():
    needed()
    for words, evidence, fix in (
        ({"packages": ("no-such-package",)}, "no-such-package", "pip install no-such-package"),
        ({"preload": {"rules": "def f(:"}}, "<rules>", "`preload`"),
        ({"imports": ("absent_module",)}, "absent_module", "`preload`"),
    ):
        sandbox = Sandbox(boxes=1, **words)
        with pytest.raises(MissingRequirement) as caught:
            sandbox.info()
        assert evidence in caught.value.evidence and fix in caught.value.fix
        assert "user namespaces" not in caught.value.fix
        sandbox.close()
