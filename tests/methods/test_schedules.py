"""Schedules read the iteration, their number and the method's states; constants that a run reads once have none."""

from dataclasses import replace

import pytest

from groupwise.checks.check_method import dry_run
from groupwise.config import recipe_toml as recipe_text
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import override, read_recipe, write
from groupwise.core import InvalidValue, Usage
from groupwise.methods import (
    CyclicValues,
    LinearRamp,
    Method,
    PiecewiseConstant,
    Schedule,
    ScheduleInput,
    Staircase,
    StateValue,
    co_grpo,
    grpo,
    published,
)
from groupwise.methods.schedules import trial_iterations, with_value
from groupwise.objective import AdaptiveKL

ADAPTIVE = replace(
    grpo(kl=0.04),
    states=(("kl", AdaptiveKL(start_value=0.04)),),
    schedules=(("objective.penalties.0.coefficient", StateValue("kl")),),
)


def test_a_ramp_without_a_length_is_over_the_whole_run() -> None:
    ramp = LinearRamp(1.0, 0.0)
    assert [ramp(ScheduleInput(i, total_iterations=4)) for i in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_constant_follows_a_memory() -> None:
    assert isinstance(StateValue("kl"), Schedule)
    method = ADAPTIVE.at(ScheduleInput(7, 10, {"kl": 0.125}))
    (penalty,) = method.objective.penalties
    assert penalty == replace(grpo().objective.penalties[0], coefficient=0.125)


def test_an_adaptive_penalty_is_written_and_read_back_and_checked() -> None:
    recipe = Recipe(method=ADAPTIVE, iterations=3)
    assert read_recipe(write(recipe)) == recipe
    assert dry_run(recipe) == []


def test_a_schedule_of_a_memory_that_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reads state .kl., which method\.states does not define"):
        Method(schedules=(("minibatches", StateValue("kl")),))


@pytest.mark.parametrize("path", ["curriculum.size", "unverifiable", "models.reference", "states.kl.target_kl"])
def test_a_constant_that_a_run_reads_once_has_no_schedule(path: str) -> None:
    with pytest.raises(ValueError, match="once, at its start"):
        Method(schedules=((path, LinearRamp(0.0, 1.0)),))
    with pytest.raises(Usage, match="once, at its start"):
        read_recipe(f"[method.schedules]\n'{path}' = {{ kind = 'LinearRamp', start_value = 0, end_value = 1 }}")


SCHEDULED = [method for make in published if (method := make()).schedules] + [co_grpo(form="alternating"), ADAPTIVE]


@pytest.mark.parametrize("method", SCHEDULED, ids=lambda method: method.schedules[0][0])
def test_a_schedule_sets_a_field_as_the_recipe_reader_does(method: Method) -> None:
    states = {name: part.init() for name, part in method.states}
    for i in (0, 1, 29, 30, 57, 99):
        now, expected = ScheduleInput(i, 100, states), method
        for path, schedule in method.schedules:
            number = schedule(now)
            expected = override(expected, path, int(number) if float(number).is_integer() else number)
        assert method.at(now) == expected


def test_a_path_leads_through_fields_indices_and_names_of_pairs() -> None:
    value = (("a.b", (LinearRamp(0.0, 1.0), LinearRamp(2.0, 3.0))), ("c", CyclicValues((1.0,))))
    changed = (("a.b", (LinearRamp(0.0, 1.0), LinearRamp(2.0, 3.0, 7))), ("c", CyclicValues((1.0,))))
    assert (
        with_value(value, '"a.b".1.over_iterations', 7.0)
        == changed
        == with_value(value, "'a.b'.1.over_iterations", 7.0)
    )
    with pytest.raises(ValueError, match="the first of them 0"):
        with_value(PiecewiseConstant(((0, 1.0),)), "iteration_value_pairs.0.0", 3.0)


def test_a_number_that_a_field_refuses_in_the_run_is_a_typed_error() -> None:
    """Numbers of a memory are not known when the recipe is read."""
    method = replace(ADAPTIVE, schedules=(("group_size", StateValue("kl")),))
    with pytest.raises(InvalidValue, match="at iteration 3 the schedule of group_size returns 0, which is refused"):
        method.at(ScheduleInput(3, 10, {"kl": 0.0}))


def test_reading_tries_a_long_run_at_about_a_hundred_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(recipe_text, "override", lambda *call: tried.append(call) or override(*call))
    read_recipe("iterations = 10000\nmethod = 'train_long_think_short'")
    assert 100 <= len(tried) <= 105


def test_the_tried_iterations_include_extremes_and_each_mix_of_whole_and_fractional_numbers() -> None:
    assert trial_iterations([LinearRamp(0.0, 1.0)], 3, {}) == [0, 1, 2] and trial_iterations(
        [LinearRamp(0.0, 1.0)], 0, {}
    ) == [0]
    rare = PiecewiseConstant(((0, 1.0), (5001, 9.0), (5002, 1.0), (7001, 1.5), (7002, 1.0)))
    assert {0, 5001, 7001, 9999} <= {*trial_iterations([rare, Staircase(4.0, 0.5, 2000)], 10_000, {})}
