"""Tests of the settings of a recipe's machine, in whole runs."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import torch

from groupwise.config.recipe import Machine
from groupwise.config.user_code import UserCode
from groupwise.core import MissingRequirement
from groupwise.engines import Native
from groupwise.learner import Learner
from groupwise.methods import LinearRamp
from groupwise.objective import KL
from groupwise.rollout import RolloutBuffer
from groupwise.training.build_run import build, prepare
from groupwise.training.run_guards import RunGuards
from tests.faults.small_runs import EVERY, left, lines, ran


def test_recompute_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    plain, again = (
        left(ran(tmp_path / str(r), replace(EVERY, machine=Machine(gradient_checkpointing=r)))) for r in (False, True)
    )
    assert plain["state"].pop("recipe") != again["state"].pop("recipe")  # a checkpoint contains the text of its recipe
    assert plain == again
    assert build(replace(EVERY, machine=Machine(gradient_checkpointing=True)), UserCode()).model.model.recompute


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-3), ("float64", 1e-3), ("bfloat16", 2.0)])
def test_the_bound_on_the_gap_depends_on_the_dtype(dtype, bound) -> None:
    recipe = replace(EVERY, machine=Machine(dtype=dtype))
    assert build(recipe, UserCode()).new_guards().max_logprob_diff == bound
    assert (
        build(replace(recipe, engine=Native(max_logprob_diff=0.25)), UserCode()).new_guards().max_logprob_diff == 0.25
    )


def test_only_models_that_a_part_needs_are_built() -> None:
    method = EVERY.method
    off = replace(method, objective=replace(method.objective, penalties=(KL(0.0),)))
    rising = replace(off, schedules=(("objective.penalties.0.coefficient", LinearRamp(0.0, 0.1, 5)),))
    for it, names in ((method, ["reference"]), (off, []), (rising, ["reference"])):
        assert list(build(replace(EVERY, method=it), UserCode()).new_learner().models) == names


def test_the_objects_of_a_run_are_assembled_once() -> None:
    objects = build(EVERY, UserCode())
    for field in fields(objects):
        with pytest.raises(FrozenInstanceError):
            setattr(objects, field.name, None)
    with pytest.raises(FrozenInstanceError):
        objects.rollout_setting.environment_reply_log = None  # type: ignore[misc]
    assert {type(getattr(objects, field.name)) for field in fields(objects)}.isdisjoint(
        {Learner, RolloutBuffer, RunGuards}
    )


def test_samplers_have_the_recipes_template_and_the_models_positions() -> None:
    objects = build(EVERY, UserCode())
    prompt = objects.task[0]
    assert (
        objects.rollout_setting.encode_prompt is not None
        and objects.rollout_setting.encode_prompt(prompt.text) == prompt.token_ids
    )
    assert objects.rollout_setting.max_positions == objects.model.shape.max_positions


def test_a_missing_compiler_is_an_error_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(act: object, **how: object) -> object:
        def fails(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nmore")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    prepare(Machine())
    with pytest.raises(MissingRequirement, match="this machine cannot compile for cpu") as error:
        prepare(Machine(compile=True))
    assert "No working C++ compiler" in str(error.value) and "more" not in str(error.value)


@pytest.mark.slow  # half a minute of building kernels
def test_compiled_runs_are_equal_and_close_to_the_plain_one(tmp_path: Path) -> None:
    """Runs in separate processes, since torch cannot compile the annotation checks of the tests."""
    base = [sys.executable, "-m", "groupwise", "train", "--iterations", "3", "--evaluate.problems", "32"]
    flags = {"plain": [], "compiled": ["--machine.compile", "true"], "again": ["--machine.compile", "true"]}
    for name, words in flags.items():
        subprocess.run([*base, "--out", str(tmp_path / name), *words], check=True, capture_output=True, timeout=300)
    runs = [next((tmp_path / name).iterdir()) for name in flags]
    plain, compiled, again = map(lines, runs)
    assert compiled == again
    assert compiled[1]["entropy"] == pytest.approx(plain[1]["entropy"], rel=1e-4)
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] != weights[1] == weights[2]  # other kernels: something was compiled
