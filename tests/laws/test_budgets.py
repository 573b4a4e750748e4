"""A law of the code: every batch of a run has the run's generation budget."""

import ast
from pathlib import Path

import groupwise

HOME = Path(groupwise.__file__).parent


def test_every_batch_of_a_run_has_the_runs_budget() -> None:
    """From stored samples and in the trial of a recipe, too: `pack` is called with `max_tokens`."""
    calls = {}
    for file in sorted(HOME.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pack":
                named = any(k.arg == "max_tokens" for k in node.keywords)
                calls.setdefault(file.relative_to(HOME).as_posix(), []).append(named)
    assert len(calls) >= 4 and all(all(named) for named in calls.values()), calls
