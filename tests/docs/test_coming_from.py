"""What is said to be the same here can be typed."""

import re
from pathlib import Path

import pytest

from groupwise.config.text import attempt
from groupwise.config.user_code import Use

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
RIGHT = [line.rstrip("|").rsplit(" | ", 1)[1] for line in PAGE.splitlines() if line.startswith("| ")]
SAID = sorted({said for cell in RIGHT for said in re.findall(r"`([a-z_.]+) = ([^`]+)`", cell)})
BASE = 'method.base = "grpo"\nprompts = 16'


@pytest.mark.parametrize(("path", "value"), SAID, ids=lambda x: x)
def test_a_line_can_be_typed(path: str, value: str) -> None:
    base = BASE.replace('"grpo"', value) if path == "method.base" else BASE
    recipe, problems = attempt(base, [] if path == "method.base" else [(path, value)], Use())
    assert recipe is not None and problems == []


def test_tables_were_read() -> None:
    assert len(SAID) > 40 and "`GRPOConfig`" in PAGE
    known = {path for path, _ in SAID}
    assert {"method.group_size", "method.minibatches", "method.objective.aggregate", "method.advantage"} <= known
