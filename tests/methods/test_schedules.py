"""Schedules read the iteration, their number and the memories; constants that a run reads once have none."""

from dataclasses import replace

import pytest

from groupwise.config.recipe import Recipe
from groupwise.config.text import override, read_recipe, write
from groupwise.data import Usage
from groupwise.methods import FromMemory, Method, Now, Ramp, Schedule, grpo
from groupwise.objective import AdaptiveKL
from groupwise.training.check_method import dry_run

ADAPTIVE = replace(
    grpo(kl=0.04),
    memory=(("kl", AdaptiveKL(start=0.04)),),
    schedules=(("objective.penalties.0.coefficient", FromMemory("kl")),),
)


def test_a_ramp_without_a_length_is_over_the_whole_run() -> None:
    ramp = Ramp(1.0, 0.0)
    assert [ramp(Now(i, iterations=4)) for i in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_constant_follows_a_memory() -> None:
    assert isinstance(FromMemory("kl"), Schedule)
    method = ADAPTIVE.at(Now(7, 10, {"kl": 0.125}))
    (penalty,) = method.objective.penalties
    assert penalty == replace(grpo().objective.penalties[0], coefficient=0.125)


def test_an_adaptive_penalty_is_written_and_read_back_and_checked() -> None:
    recipe = Recipe(method=ADAPTIVE, iterations=3)
    assert read_recipe(write(recipe)) == recipe
    assert dry_run(recipe) == []


def test_a_schedule_of_a_memory_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reads memory .kl., which method\.memory does not define"):
        Method(schedules=(("minibatches", FromMemory("kl")),))


@pytest.mark.parametrize("path", ["curriculum.size", "unverifiable", "models.reference", "memory.kl.target"])
def test_a_constant_that_a_run_reads_once_has_no_schedule(path: str) -> None:
    with pytest.raises(ValueError, match="once, at its start"):
        Method(schedules=((path, Ramp(0.0, 1.0)),))
    with pytest.raises(Usage, match="once, at its start"):
        read_recipe(f"[method.schedules]\n'{path}' = {{ kind = 'Ramp', start = 0, end = 1 }}")
