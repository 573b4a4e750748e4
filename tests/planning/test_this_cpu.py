"""The seconds of a run before it begins: scaling laws, the line, the warning, and no effect on the run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from groupwise.__main__ import main
from groupwise.config.recipe import Evaluate, Machine, Recipe
from groupwise.config.resolve_devices import resolved
from groupwise.config.user_code import UserCode
from groupwise.data import Sampling
from groupwise.engines import Served
from groupwise.lifecycle.create_or_open_run import read_checked, time_notes
from groupwise.methods import gspo
from groupwise.models import DecoderShape, find_model, read_shape
from groupwise.planning.cpu_run_duration import HOUR, CpuRates, duration_lines, measured_rates, run_duration

SHAPE = read_shape(find_model("calculator"))
RATES = CpuRates(matmul_flops_per_second=1e11, memory_read_bytes_per_second=1e10, small_operation_seconds=1e-6)
RECIPE = resolved(Recipe(method=gspo(), iterations=10, sampling=Sampling(max_tokens=32), evaluate=Evaluate(problems=8)))
LARGE = DecoderShape(
    vocabulary_size=49152,
    hidden_size=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    mlp_width=1536,
    max_positions=2048,
)


def test_the_seconds_scale_with_the_work_and_the_rates() -> None:
    assert isinstance(SHAPE, DecoderShape)
    base = run_duration(RECIPE, SHAPE, 12, 8, RATES)
    slow = CpuRates(
        *(rate / 2 for rate in (RATES.matmul_flops_per_second, RATES.memory_read_bytes_per_second)),
        small_operation_seconds=2 * RATES.small_operation_seconds,
    )
    assert run_duration(RECIPE, SHAPE, 12, 8, slow).iteration_seconds == pytest.approx(2 * base.iteration_seconds)
    assert run_duration(RECIPE, SHAPE, 12, 0, RATES).run_seconds == pytest.approx(10 * base.iteration_seconds)
    evaluated = replace(RECIPE, evaluate=replace(RECIPE.evaluate, every=3))  # at 0, 3, 6, 9 and 10
    extra = run_duration(evaluated, SHAPE, 12, 8, RATES).run_seconds - 10 * base.iteration_seconds
    assert base.run_seconds > 10.01 * base.iteration_seconds  # evaluated at 0 and 10
    assert extra == pytest.approx(5 / 2 * (base.run_seconds - 10 * base.iteration_seconds))
    for larger in (
        replace(RECIPE, prompts=32),
        replace(RECIPE, method=replace(RECIPE.method, group_size=64)),
        replace(RECIPE, sampling=Sampling(max_tokens=64)),
    ):
        assert 1.3 < run_duration(larger, SHAPE, 12, 8, RATES).iteration_seconds / base.iteration_seconds < 5
    assert run_duration(RECIPE, LARGE, 12, 8, RATES).iteration_seconds > 50 * base.iteration_seconds


def test_more_than_an_hour_an_iteration_is_a_warning() -> None:
    """128 answers of 1,024 tokens of a model of 135 million weights, once the default for data of one's own."""
    recipe = replace(RECIPE, method=gspo(group_size=8), sampling=Sampling(max_tokens=1024), iterations=100)
    duration = run_duration(recipe, LARGE, 40, 1, RATES)
    line, warning = duration_lines(recipe, duration)
    assert duration.iteration_seconds > HOUR and line.startswith("time: about ") and " days" in line
    assert warning.startswith("  warning: an iteration may take more than an hour: lower sampling.max_tokens")
    assert len(duration_lines(RECIPE, run_duration(RECIPE, LARGE, 40, 1, RATES))) == 1


def test_the_measurement_leaves_no_trace() -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    measured_rates.cache_clear()
    for dtype, number in (("float32", 1), ("bfloat16", 2)):
        rates = measured_rates(dtype, number)
        assert (
            rates.matmul_flops_per_second > 0
            and rates.memory_read_bytes_per_second > 0
            and rates.small_operation_seconds > 0
        )
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == threads


def test_other_machines_and_processes_have_no_line() -> None:
    inputs = read_checked(RECIPE, UserCode(), lambda line: None)
    assert len(time_notes(RECIPE, inputs, UserCode())) == 1
    for other in (replace(RECIPE, engine=Served()), replace(RECIPE, machine=Machine(device="cuda"))):
        assert time_notes(other, inputs, UserCode()) == []


def test_the_line_is_on_the_screen_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--iterations", "1", "--prompts", "4", "--method.group_size", "2", "--evaluate.problems", "2"]
    assert main(["train", *words, "--out", str(tmp_path)]) == 0
    plan, time = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("plan:", "time:"))]
    assert (
        plan.startswith("plan: 223,520 weights")
        and "s an iteration on this CPU if all answers have 48 tokens, 1 iterations: " in time
    )
    (run,) = tmp_path.iterdir()
    assert not any(
        "time:" in path.read_text() for path in (run / "metrics.jsonl", run / "run.json", run / "recipe.toml")
    )
