"""The notebook's cells run in an event loop, as in Jupyter, and each last expression can be shown."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def executed(source: str, space: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), space) if isinstance(last, ast.Expr) else None


def test_the_notebook_runs(home: Path) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    space: dict[str, Any] = {"__name__": "__main__"}

    async def kernel() -> list[Any]:
        return [executed("".join(cell["source"]).replace("iterations=15", "iterations=2"), space) for cell in cells]

    values = asyncio.run(kernel())
    assert not any(cell["outputs"] for cell in cells)
    run, rewards = values[2], values[3]
    assert run.done == 2 and list(rewards) == [1, 2] and "<table>" in run._repr_html_()
    assert isinstance(values[5], str) and {"greedy score", "score"} == set(values[6].figures)
    assert values[-1]._repr_html_().startswith("<iframe")
