"""Methods learn the toy task, and unlearn it when the reward is reversed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from groupwise.methods import published
from groupwise.methods.families import method_family
from groupwise.rewards import Correctness, everything
from tests.toys.echo import LEARNERS, NAMES, ToyRun, rate, small

SIZES = {"dr_grpo": {"iterations": 50, "max_tokens": 6}}
"""Dr. GRPO gives reward 0 to an unfinished answer, so the end token must be learned too."""

OTHERS = [name for name in NAMES if method_family(name) in ("start", "ratio") and name not in LEARNERS]


def toy_run(name: str, directory: Path, **changes: Any) -> ToyRun:
    method = small(name)
    prompts = 4 if method.group_size > 1 else 16
    sizes: dict[str, Any] = {"prompts": prompts, "iterations": 20, "lr": 0.02} | SIZES.get(name, {})
    return ToyRun(method, directory, **{**sizes, **changes})


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns(name: str, tmp_path: Path) -> None:
    lines = toy_run(name, tmp_path).go()
    early, late = rate(lines[1:4]), rate(lines[-3:])
    assert early < 0.5 and late > early + 0.3 and late > (0.5 if name in SIZES else 0.75), (early, late)
    assert all(line["entropy"] > 0 for line in lines[1:] if "entropy" in line)


@pytest.mark.parametrize(
    "name", [*LEARNERS[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in (*LEARNERS[3:], *OTHERS))]
)
def test_it_learns_the_opposite_of_a_reversed_reward(name: str, tmp_path: Path) -> None:
    """The same method with right and wrong exchanged: the policy follows the reward, not what is easy."""
    plain = toy_run(name, tmp_path / "run", iterations=12)
    first = plain.method.shaping[0]
    right, wrong = (first.correct_reward, first.wrong_reward) if isinstance(first, Correctness) else (1.0, 0.0)
    reversed_ = Correctness(correct_reward=wrong, wrong_reward=right)
    method = replace(plain.method, shaping=(reversed_, *plain.method.shaping[1:]), filter=everything, max_refills=0)
    lines = ToyRun(method, tmp_path / "reversed", prompts=plain.prompts, iterations=12, lr=0.02).go()
    assert rate(lines[-3:]) < 0.1


def test_the_methods_are_those_that_are_published() -> None:
    assert set(LEARNERS) <= set(NAMES) <= {method.__name__ for method in published}
