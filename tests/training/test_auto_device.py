"""A run with `auto` on a simulated GPU: it records what it took, and another machine continues it in its dtype."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from groupwise.config.recipe import Evaluate
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.data import Sampling
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.run_layout import RunLayout
from groupwise.training.build_run import RunObjects, build
from tests.faults.small_runs import EVERY, Quick, begin, reopen, run_from
from tests.pretended_gpu import GPU, NAME, pretended_gpu

AUTO = replace(EVERY, iterations=1, sampling=Sampling(max_tokens=6), evaluate=Evaluate(problems=1))


def run_json(run: Path) -> dict[str, object]:
    return json.loads((run / "run.json").read_text())


def test_a_run_keeps_the_dtype_of_its_first_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with monkeypatch.context() as gpu, pretended_gpu():
        ready = build(AUTO, UserCode())
        begin(run, ready, UserCode(), "", "")
        created, new_learner = [], RunObjects.new_learner
        gpu.setattr(RunObjects, "new_learner", lambda *args: created.append(new_learner(*args)) or created[-1])
        assert run_from(run, ready, disk=Quick()).exit_code == 0
        optimizer = created[0].optimizer
        assert {(x.device, x.dtype) for x in optimizer.weights} == {(GPU, torch.bfloat16)}
        assert {(x.device, x.dtype) for x in optimizer.masters} == {(GPU, torch.float32)}
    machine = read_recipe(run / "recipe.toml").machine
    assert (machine.device, machine.dtype, run_json(run)["device"]) == ("auto", "bfloat16", f"cuda:0 ({NAME})")
    assert "device:" not in capsys.readouterr().err

    ready = reopen(run, UserCode(), 2)
    assert (ready.recipe.machine.dtype, ready.device) == ("bfloat16", "cpu")
    assert run_from(run, ready, disk=Quick()).exit_code == 0
    assert f"warning: device: cuda:0 ({NAME}) -> cpu" in capsys.readouterr().err
    assert run_json(run)["device"] == "cpu"
    assert f"device: cuda:0 ({NAME}) -> cpu" in str(run_json(run)["changes"])
    checkpoint = newest_checkpoint(RunLayout(run), strict=True)
    assert checkpoint and checkpoint.state["device"] == "cpu"


def test_a_run_on_a_cpu_records_float32(tmp_path: Path) -> None:
    ready = build(AUTO, UserCode())
    begin(tmp_path, ready, UserCode(), "", "")
    machine = read_recipe(tmp_path / "recipe.toml").machine
    assert (machine.device, machine.dtype, run_json(tmp_path)["device"]) == ("auto", "float32", "cpu")
