"""Each test that the table of breaks names exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "README.md").read_text().partition("<!-- breaks -->")[2].partition("<!-- /breaks -->")[0]
NAMED = re.findall(r"\| `([\w/]+)::(\w+)[^|]*` \|$", TABLE, re.M)


def test_every_row_names_a_test_that_exists() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(NAMED) > 100
    for file, name in NAMED:
        tree = ast.parse((TESTS / f"{file}.py").read_text())
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        assert name in {f.name for f in functions}, f"{file} has no {name}"
