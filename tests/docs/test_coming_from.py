"""Each line of a recipe on the page for users of TRL and verl can be read."""

import re
from pathlib import Path

import pytest

from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.user_code import UserCode

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
RIGHT = [line.rstrip("|").rsplit(" | ", 1)[1] for line in PAGE.splitlines() if line.startswith("| ")]
LINES = sorted({line for cell in RIGHT for line in re.findall(r"`([a-z_.]+) = ([^`]+)`", cell)})
BASE = 'method.base = "grpo"\nprompts = 16'


@pytest.mark.parametrize(("path", "value"), LINES, ids=lambda x: x)
def test_a_line_can_be_read(path: str, value: str) -> None:
    base = BASE.replace('"grpo"', value) if path == "method.base" else BASE
    recipe, problems = read_with_problems(base, [] if path == "method.base" else [(path, value)], UserCode())
    assert recipe is not None and problems == []


def test_tables_were_read() -> None:
    assert len(LINES) > 40 and "`GRPOConfig`" in PAGE
    paths = {path for path, _ in LINES}
    assert {"method.group_size", "method.minibatches", "method.objective.aggregate", "method.advantage"} <= paths
