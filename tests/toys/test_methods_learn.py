"""Every published method learns a toy in seconds; so does what it must not: nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.methods import published
from groupwise.rewards import Correctness, everything
from tests.toys.echo import NAMES, World, rate, small

SIZES = {"dr_grpo": {"iterations": 50, "max_tokens": 6}}
"""Dr. GRPO gives nothing to an answer that did not end, so ending has to be learned as well."""


def environment(name: str, directory: Path, **changes: Any) -> World:
    method = small(name)
    prompts = 4 if method.group_size > 1 else 16
    sizes: dict[str, Any] = {"prompts": prompts, "iterations": 20, "lr": 0.02} | SIZES.get(name, {})
    return World(method, directory, **{**sizes, **changes})


@pytest.mark.parametrize("name", NAMES)
def test_it_learns(name: str, tmp_path: Path) -> None:
    lines = environment(name, tmp_path).go()
    early, late = rate(lines[1:4]), rate(lines[-3:])
    assert early < 0.5 and late > early + 0.3 and late > (0.5 if name in SIZES else 0.75), (early, late)
    assert all(line["entropy"] > 0 for line in lines[1:] if "entropy" in line)


@pytest.mark.parametrize("name", NAMES)
def test_it_unlearns_what_is_called_wrong(name: str, tmp_path: Path) -> None:
    """The same method with the sign of its reward turned: a policy does what it is told, not what is easy."""
    made = environment(name, tmp_path / "run", iterations=12)
    first = made.method.shaping[0]
    assert isinstance(first, Correctness)
    turned = replace(first, right=first.wrong, wrong=first.right)
    method = replace(made.method, shaping=(turned, *made.method.shaping[1:]), filter=everything, refill=0)
    lines = World(method, tmp_path / "turned", prompts=made.prompts, iterations=12, lr=0.02).go()
    assert rate(lines[-3:]) < 0.1


def test_all_of_them_are_here() -> None:
    assert len(NAMES) == len(published) == 10
