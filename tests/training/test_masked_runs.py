"""Whole runs of masked policies: they resume to the bit; check refuses unfit recipes; verdicts on strings of beads."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.__main__ import main
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import BadData
from groupwise.data import Outcome, Prompt, Sample
from groupwise.methods import co_grpo
from groupwise.models import MaskedPolicy, UnmaskingSettings, find_model, read_model, read_tokenizer, write_model
from groupwise.tasks.beads import has_pattern
from groupwise.verifiers import BeadString
from tests.checks import check
from tests.faults.small_runs import lines, run_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def beads_run(directory: Path, iterations: int, stop_at: int = 0, **changes: Any) -> Path:
    return run_recipe(directory, "beads", iterations, stop_at, {"prompts": 6, **changes})


@pytest.mark.parametrize("form", ["joint", "alternating"])
def test_a_run_resumes_to_the_bit(tmp_path: Path, form: str) -> None:
    turns = 'mask = [{ kind = "AlternatingRoleMask", alternating_sample_roles = ["schedule", "answer"] }], '
    turns += 'schedules = { "mask.0.active_role_index" = { kind = "CyclicValues", values = [0, 1] } }'
    method = {"method": f'{{ base = "co_grpo", group_size = 4, {turns} }}'}
    changes = {} if form == "joint" else method
    whole = beads_run(tmp_path / "whole", 2, **changes)
    cut = beads_run(tmp_path / "cut", 2, stop_at=1, **changes)
    if form == "alternating":
        assert read_recipe(whole / "recipe.toml").method == co_grpo(group_size=4, form="alternating")
    assert lines(whole)[-1]["iteration"] == 2 and lines(whole)[1]["grad_norm"] > 0
    names = [*(f"samples/00000{i}{suffix}" for i in (1, 2) for suffix in (".jsonl", ".safetensors"))]
    for name in [*names, "model/model.safetensors", "model/config.json"]:
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    assert lines(whole)[1]["sampling/sampling_logp_difference/max"] < 1e-4
    model, base = read_model(whole / "model"), read_model(find_model("beads"))
    assert isinstance(model, MaskedPolicy) and isinstance(base, MaskedPolicy)
    assert model.unmask.knob_std == 0.3 and model.schedule.mean_change.abs().max() > 0
    assert not torch.equal(model.predictor.leave.weight, base.predictor.leave.weight)
    rows = [json.loads(line) for line in (whole / "samples" / "000001.jsonl").read_text().splitlines()]
    assert all(len(row["text"]) == 8 for row in rows if row["role"] == "answer")


def test_another_method_trains_it_with_a_fixed_schedule(tmp_path: Path) -> None:
    run = beads_run(
        tmp_path / "run", 1, method='{ base = "dr_grpo", group_size = 4, minibatches = 1, unmask = { steps = 3 } }'
    )
    model = read_model(run / "model")
    assert isinstance(model, MaskedPolicy) and model.unmask == UnmaskingSettings(steps=3)
    assert lines(run)[1]["grad_norm"] > 0 and model.schedule.mean_change.abs().max() == 0


def test_samples_are_text_and_have_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--out`, a line says that no file is written."""
    words = ["sample", "beads", "mirror red green", "--method", "co_grpo", "--out", str(tmp_path / "x.png")]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert len(printed.out.strip()) == 8 and "x.png is not written: --out is for pictures" in printed.err
    assert not [*tmp_path.iterdir()]
    assert main([*words[:-2], "--evaluate.denoising_steps", "3"]) == 2
    assert "has 4 steps, and no others" in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "tokens"), [(6, 70), (4, 48)])
def test_a_reference_from_a_directory_unmasks_as_the_method_does(tmp_path: Path, steps: int, tokens: int) -> None:
    """Its stored schedule is fixed and has 4 steps; the log-probs of knobs need the method's spread and steps."""
    reference = {"method.models.reference": '{ kind = "FromDirectory", directory = "beads" }'}
    changes = {**reference, "method.unmask.steps": steps, "sampling.max_tokens": tokens, "evaluate.problems": 1}
    run, other = (beads_run(tmp_path / name, 2, **changes) for name in ("given", "again"))
    plain = beads_run(tmp_path / "copied", 2, **{name: x for name, x in changes.items() if name not in reference})
    assert lines(run)[2]["kl"] == lines(other)[2]["kl"] == lines(plain)[2]["kl"] > 0


def test_a_trained_schedule_is_kept_with_another_speed_and_floor(tmp_path: Path) -> None:
    """Its means and deviations stay; a schedule with another start is discarded, and `check` says so before the run."""
    policy = read_model(find_model("beads"))
    assert isinstance(policy, MaskedPolicy)
    trained = UnmaskingSettings(knob_std=0.3)
    policy.set_unmask(trained)
    for parameter in policy.schedule.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    write_model(policy, tmp_path, tokenizer=read_tokenizer(find_model("beads")))
    known = policy.schedule.mean.detach(), policy.schedule.std.detach()
    both = {"schedule_lr_factor": 40.0, "min_knob_std": 0.02}
    for changes in ({"schedule_lr_factor": 5.0}, {"min_knob_std": 0.01}, both):
        unmask = replace(trained, **changes)
        policy.set_unmask(unmask)
        assert policy.unmask == unmask
        torch.testing.assert_close((policy.schedule.mean, policy.schedule.std), known)
    for changes in ({"schedule_lr_factor": 0.0}, {"knob_std": 0.2}, {"temperature": 0.9}):
        unmask = replace(trained, **changes)
        policy.set_unmask(trained)
        policy.schedule.mean_change.data.fill_(0.01)
        policy.set_unmask(unmask)
        assert policy.schedule.mean_change.abs().max() == 0

    def notes(**changes: Any) -> list[str]:
        found: list[str] = []
        fields = [("model", str(tmp_path)), *((f"method.unmask.{name}", str(x)) for name, x in changes.items())]
        assert check(RECIPES / "beads.toml", fields, notify=found.append) == []
        return [line for line in found if "is discarded" in line]

    assert notes() == notes(schedule_lr_factor=5, min_knob_std=0.01) == []
    (line,) = notes(knob_std=0.2)
    assert "to keep it, set method.unmask to steps = 4, temperature = 1, knob_std = 0.3" in line


@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        ("beads.toml", [("method", "grpo")], "does not set method.unmask"),
        ("beads.toml", [("method", "flow_grpo")], "the method is for flow models"),
        (None, [("method", "co_grpo")], "calculator is a language model"),
        ("rings.toml", [("method", "co_grpo")], "rings is a flow model"),
        ("beads.toml", [("sampling.max_tokens", "40")], "sampling.max_tokens does not fit"),
        ("beads.toml", [("method.unmask.steps", "6")], "sampling.max_tokens does not fit"),
        ("beads.toml", [("sampling.temperature", "0.7")], "sampling.temperature does not fit"),
        ("beads.toml", [("method.strategy", "Turns")], "method.strategy does not fit"),
        ("beads.toml", [("evaluate.denoising_steps", "6")], "evaluate.denoising_steps does not fit"),
        ("beads.toml", [("lora.rank", "4")], "lora does not fit"),
        ("beads.toml", [("method.unmask.steps", "0")], "needs 1 <= steps <= 64"),
        ("beads.toml", [("method.unmask.knob_std", "0.01")], "needs a min_knob_std above 0"),
        ("beads.toml", [("task", "rings")], "token"),
    ],
)
def test_check_refuses_recipes_that_do_not_fit_a_masked_model(source: str | None, fields: Any, message: str) -> None:
    errors = check(None if source is None else RECIPES / source, fields)
    assert any(message in str(error) for error in errors), errors
    assert all(error.fix for error in errors)


@pytest.mark.parametrize(("model", "known"), [("beads", "co_grpo"), ("rings", "flow_grpo")])
def test_advice_names_methods_that_fit(model: str, known: str) -> None:
    """Each method that the error names is one for this kind of model; an unreadable method gives no error about it."""
    (error,) = check(RECIPES / f"{model}.toml", [("method", "grpo")])
    names = str(error.fix).partition(",")[0].removeprefix("use --method ").split(" or ")
    assert known in names
    for name in names:
        errors = check(RECIPES / f"{model}.toml", [("method", name), ("sampling.max_tokens", "48")])
        assert not [e for e in errors if "does not set" in e.what or "the method is" in e.what], (name, errors)
    (only,) = check(RECIPES / f"{model}.toml", [("method.group_size", "0")])
    assert "group_size is 0" in only.what


def test_the_packaged_recipe_passes_the_check() -> None:
    assert check(RECIPES / "beads.toml") == []


def test_directories_of_masked_models(tmp_path: Path) -> None:
    model, tokenizer = read_model(find_model("beads")), read_tokenizer(find_model("beads"))
    write_model(model, tmp_path, tokenizer=tokenizer)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (find_model("beads") / name).read_bytes(), name
    config = json.loads((tmp_path / "config.json").read_text())
    unmask = config["unmask"]
    for wrong, why in (
        ({"cells": 0}, "cells is 0"),
        ({"width": 47}, "width is 47"),
        ({"layers": 999}, "layers is 999: it must be a whole number from 1 to 128"),
        ({"prompt_vocabulary": 9999, "prompt_length": 9999}, "prompt_length is 9999 with 9999 embeddings each"),
        ({"unmask": unmask | {"steps": 99}}, "steps is 99"),
        ({"unmask": unmask | {"temperature": "hot"}}, "temperature is 'hot': it must be a number"),
        ({"unmask": unmask | {"heat": 1}}, "unmask has the fields 'heat'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(BadData, match="does not describe a masked model") as caught:
            read_model(tmp_path)
        assert why in str(caught.value)
    (tmp_path / "config.json").write_text(json.dumps(config | {"unmask": {"steps": 4}}))
    with pytest.raises(BadData, match="lacks temperature"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"unmask": unmask | {"temperature": 1, "knob_std": 0}}))
    policy = read_model(tmp_path)
    assert isinstance(policy, MaskedPolicy) and policy.unmask == UnmaskingSettings()
    (tmp_path / "config.json").write_text(json.dumps(config | {"cells": 9}))
    with pytest.raises(BadData, match="not those that its config"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("text", "outcome", "pattern", "colours"),
    [
        ("rggrrggr", Outcome.correct, 1, 1),
        ("rrrrrrrr", Outcome.wrong, 1, 0),
        ("rgbrrbgr", Outcome.wrong, 1, 0),
        ("rggrgrrg", Outcome.wrong, 0, 1),
        ("rggrrgg", Outcome.malformed, 0, 0),
        ("rggr ggr", Outcome.malformed, 0, 0),
    ],
)
def test_verdicts_on_beads(text: str, outcome: Outcome, pattern: float, colours: float) -> None:
    prompt = Prompt("p", (1,), "", {"answer": ["mirror", "red", "green"]})
    verdict = asyncio.run(BeadString()(prompt, Sample(context=(1,), stream=(0,), text=text)))
    assert verdict.outcome is outcome and verdict.subscores == {"pattern": pattern, "colours": colours}
    assert has_pattern("rgrgrgrg", "repeat") and not has_pattern("rgrgrgrg", "mirror")
