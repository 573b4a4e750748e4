"""Whole runs of flow policies: they learn, resume to the bit, and end as solved; check refuses unfit recipes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from groupwise.commands.chat import chat
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Usage
from groupwise.data import Finish, Outcome, Prompt, Sample
from groupwise.inference.evaluate_model import evaluate, sample
from groupwise.models import encode_action, find_model, picture_of, png, read_model, read_tokenizer, write_model
from groupwise.models.flow.latent_pictures import read_png
from groupwise.report.sample_pictures import picture as picture_in_report
from groupwise.tasks import Rings, named_task
from groupwise.verifiers import RingPointDirection
from tests.checks import check
from tests.faults.small_runs import lines, reopen, run_recipe
from tests.verifiers.built import built

RECIPES = Path(__file__).parents[2] / "recipes"


def rings_run(directory: Path, iterations: int, stop_at: int = 0, **changes: Any) -> Path:
    return run_recipe(directory, "rings", iterations, stop_at, changes)


METHODS = (
    "flow_grpo", "grpo_guard", "diffusion_nft", "gdpo_sr", "pref_grpo", "sage_grpo_flow", "branch_grpo", "g2rpo"
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumes_to_the_bit_with_its_pictures(tmp_path: Path, method: str) -> None:
    steps = "" if method in ("branch_grpo", "g2rpo") else ", denoise.steps = 10"
    other = {
        "method": f'{{ base = "{method}", group_size = 4{steps} }}',
        "sampling.max_tokens": 20,
        "prompts": 2 if method == "g2rpo" else 4,
    }
    changes = {"method.group_size": 4, "prompts": 4} if method == "flow_grpo" else other
    whole = rings_run(tmp_path / "whole", 2, **changes)
    cut = rings_run(tmp_path / "cut", 2, stop_at=1, **changes)
    assert lines(whole)[-1]["iteration"] == 2 and lines(whole)[1]["grad_norm"] > 0
    names = [f"samples/00000{i}{suffix}" for i in (1, 2) for suffix in (".jsonl", ".safetensors", ".png")]
    for name in [*names, "model/model.safetensors"]:
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    if method == "grpo_guard":
        assert lines(whole)[1]["ratio/mean"] == pytest.approx(1, abs=1e-3)
    if method not in ("diffusion_nft", "gdpo_sr"):
        assert lines(whole)[1]["sampling/sampling_logp_difference/max"] < 1e-4


def test_a_mask_may_empty_a_microbatch(tmp_path: Path) -> None:
    """The first part of a tree loses all its steps. The gradient is that of one microbatch with all samples."""
    pruning = '{ kind = "DepthPruning", first_pruned_step = 0, pruned_step_count = 4 }'
    masked = f'{{ base = "branch_grpo", group_size = 4, mask = [{pruning}] }}'
    changes = {"method": masked, "sampling.max_tokens": 20, "evaluate.problems": 1}
    one, all_ = (rings_run(tmp_path / str(n), 1, **changes, **{"machine.microbatch_tokens": n}) for n in (1, 4096))
    assert lines(one)[1]["grad_norm"] == pytest.approx(lines(all_)[1]["grad_norm"], rel=1e-4) != 0


def test_held_out_samples_may_take_other_steps_than_training(tmp_path: Path) -> None:
    """The evaluation is that of a run with this many steps; the samples of training keep theirs."""
    few = {"method.denoise.steps": 4, "sampling.max_tokens": 16, "evaluate.problems": 8}
    run = rings_run(tmp_path / "run", 1, **few, **{"evaluate.denoising_steps": 16})
    many = rings_run(tmp_path / "many", 0, **few | {"method.denoise.steps": 16})
    plain = rings_run(tmp_path / "plain", 0, **few)
    scores = [{key: x for key, x in lines(path)[0].items() if "eval/" in key} for path in (run, many, plain)]
    assert scores[0] == scores[1] != scores[2]
    rows = [json.loads(line) for line in (run / "samples" / "000001.jsonl").read_text().splitlines()]
    assert {len(row["points"]) for row in rows} == {5}


def test_pictures_are_in_the_samples_and_in_the_report(tmp_path: Path) -> None:
    run = rings_run(tmp_path / "run", 1)
    sheet = read_png((run / "samples" / "000001.png").read_bytes())
    rows = [json.loads(line) for line in (run / "samples" / "000001.jsonl").read_text().splitlines()]
    assert len(rows) == 32
    assert all(picture_in_report(row, sheet)["picture"].startswith("data:image/png") for row in rows)
    assert picture_in_report(rows[0] | {"picture": {"box": [0, 0, "x"], "scale": 0}, "points": 7}, sheet) == {}
    assert [np.shape(row["points"]) for row in rows] == [(11, 2)] * 32
    page = (run / "report.html").read_text()
    assert "img-src data:;" in page and "data:image/png;base64," in page
    state = torch.linspace(-1, 1, 12).view(3, 2, 2).numpy()
    pixels = picture_of([encode_action(state, state, state)])
    assert pixels is not None and np.array_equal(read_png(png(pixels)), pixels)
    assert pixels[0, 0].tolist() == [0, 93, 185] and pixels[1, 1].tolist() == [70, 162, 255]
    with pytest.raises(ValueError, match="not a PNG file that groupwise wrote"):
        read_png(b"\x89PNG\r\n\x1a\n" + b"0" * 40)


@pytest.mark.parametrize(
    ("source", "fields", "message"),
    [
        ("rings.toml", [("method", "grpo")], "does not set method.denoise"),
        (None, [("method", "flow_grpo")], "calculator is a language model"),
        ("rings.toml", [("method.denoise.noise.noise_level", "0")], "no step would be trained"),
        ("rings.toml", [("method.denoise.steps", "12")], "sampling.max_tokens is 10: a sample of rings has 12"),
        ("rings.toml", [("evaluate.denoising_steps", "20")], "sampling.max_tokens is 10: a sample of rings has 20"),
        (
            "rings.toml",
            [("evaluate.denoising_steps", "3"), ("method.denoise.noise_end_step", "5")],
            "evaluate.denoising_steps does not fit",
        ),
        (None, [("evaluate.denoising_steps", "20")], "evaluate.denoising_steps does not fit the language model"),
        ("rings.toml", [("sampling.temperature", "0.7")], "sampling.temperature does not fit"),
        ("rings.toml", [("machine.dtype", "bfloat16")], "machine.dtype does not fit"),
        ("rings.toml", [("method.denoise.noise_end_step", "10")], "noise from step 0 to before step 10, of 10 steps"),
        ("rings.toml", [("method.denoise.noise.noise_level", "-1")], "noise_level is -1"),
        (
            "rings.toml",
            [("method.strategy", "OneNoisyStep"), ("method.denoise.noise_end_step", "7")],
            "denoising steps [7]",
        ),
        (
            "rings.toml",
            [("method.strategy", "BranchingTree"), ("method.denoise.noise_start_step", "3")],
            "denoising steps [0, 9]",
        ),
    ],
)
def test_check_refuses_recipes_that_do_not_fit_a_flow_model(source: str | None, fields: Any, message: str) -> None:
    errors = check(None if source is None else RECIPES / source, fields)
    assert any(message in str(error) for error in errors), errors
    assert all(error.fix for error in errors)


@pytest.mark.parametrize(
    ("strategy", "level", "message"),
    [
        ('{ kind = "PairwiseWinRatesStrategy", inner_strategy = { kind = "ForwardProcess" } }', "0", ""),
        ('{ kind = "ForwardProcess", strategy = { kind = "PairwiseWinRatesStrategy" } }', "0", ""),
        (
            '{ kind = "PairwiseWinRatesStrategy", inner_strategy = { kind = "Independent" } }',
            "0",
            "no step would be trained",
        ),
        (
            (
                '{ kind = "PairwiseWinRatesStrategy", '
                'inner_strategy = { kind = "NoiseWindowStrategy", start_step_below = 8 } }'
            ),
            "0.7",
            "steps [0, 1, 8]",
        ),
    ],
)
def test_check_reads_the_strategies_inside_a_strategy(strategy: str, level: str, message: str) -> None:
    last = [("method.denoise.noise_start_step", "2"), ("method.denoise.noise_end_step", "8")] if level != "0" else []
    fields = [("method.denoise.noise.noise_level", level), *last, ("method.strategy", strategy)]
    errors = check(RECIPES / "rings.toml", fields)
    assert [message in str(error) for error in errors] == [True] * bool(message), errors


def test_resume_and_eval_refuse_samples_without_their_last_denoising_step(tmp_path: Path) -> None:
    """They would be cut before they have a picture, and all count as malformed."""
    run = rings_run(tmp_path / "run", 1)
    recipe = run / "recipe.toml"
    for old, new in (("iterations = 1", "iterations = 2"), ("max_tokens = 10", "max_tokens = 5")):
        assert old in recipe.read_text()
        recipe.write_text(recipe.read_text().replace(old, new))
    with pytest.raises(Usage, match=r"sampling.max_tokens is 5: a sample of rings has 10 steps"):
        reopen(run, UserCode())
    with pytest.raises(Usage, match=r"sampling.max_tokens is 5"):
        evaluate(
            "rings", [("task", "rings"), ("verifier", "ring_point_direction"), ("sampling.max_tokens", "5")], UserCode()
        )
    with pytest.raises(Usage, match=r"sampling.max_tokens is 5"):
        sample("rings", "north", [("sampling.max_tokens", "5")], UserCode())


def test_chat_refuses_a_model_that_makes_pictures() -> None:
    with pytest.raises(Usage, match="chat needs a language model") as raised:
        chat("rings")
    assert raised.value.fix == "make a picture: groupwise sample rings PROMPT --out FILE.png"


def test_packaged_recipes_pass_the_check() -> None:
    assert all(check(RECIPES / f"{name}.toml") == [] for name in ("rings", "quilts", "glyphs"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, ""),
        ({"minibatches": 4, "filter": "mixed_scores"}, ""),
        ({"models.old": "EMA"}, "every=1) may differ from it; set method.models.old to SamplingPolicy()"),
        ({"models.old": "InitialPolicy"}, "InitialPolicy() may differ from it"),
    ],
)
def test_a_side_model_that_is_not_the_policy_that_sampled_is_named(fields: dict[str, Any], message: str) -> None:
    notes: list[str] = []
    overrides = [("method", '{ base = "diffusion_nft" }'), *((f"method.{k}", str(v)) for k, v in fields.items())]
    assert check(RECIPES / "rings.toml", overrides, notify=notes.append) == []
    notes = [note for note in notes if "the policy that sampled" in note]
    assert [message in note for note in notes] == [True] * bool(message), notes


def test_a_word_that_the_model_does_not_know_is_named_with_the_nearest_one() -> None:
    with pytest.raises(BadData, match="no token for the word 'nort'") as raised:
        read_tokenizer(find_model("rings")).encode("nort")
    assert str(raised.value.fix).startswith("did you mean north")
    with pytest.raises(BadData, match="no token for the character 'n'"):
        read_tokenizer(find_model("calculator")).encode("nort")


def test_directories_of_flow_models(tmp_path: Path) -> None:
    model, tokenizer = read_model(find_model("rings")), read_tokenizer(find_model("rings"))
    write_model(model, tmp_path, tokenizer=tokenizer)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (find_model("rings") / name).read_bytes(), name
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"state": [2, -1]}))
    with pytest.raises(BadData, match="does not describe"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"velocity.enter.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(BadData, match="not those that its config"):
        read_model(tmp_path)


def sample_with(state: Any, finish: Finish = Finish.stop) -> Sample:
    array = np.asarray(state, np.float32)
    return Sample(context=(65,), stream=(0,), finish=finish, tokens=(9,), origin=(0,), logp=(0.0,), actions=(
        encode_action(array, array, array),
    ))  # fmt: skip


async def verdict(task: Any, prompt: Prompt, state: Any, finish: Finish = Finish.stop) -> Outcome:
    name = "ring_point_direction" if task.task_settings == Rings() else "quilt_patches"
    return (await built(name, task)(prompt, sample_with(state, finish))).outcome


def test_verdicts_on_points_and_pictures() -> None:
    import asyncio

    def of(*args: Any) -> Outcome:
        return asyncio.run(verdict(*args))

    rings, quilts = (named_task(name).build(lambda text: (65,)) for name in ("rings", "quilts"))
    north = rings[2]
    assert of(rings, north, [0.1, 2.2]) is Outcome.correct and of(rings, north, [2.0, 0.0]) is Outcome.wrong
    assert of(rings, north, [0.0, 0.0]) is Outcome.malformed
    parts = [asyncio.run(RingPointDirection()(north, sample_with(x))).subscores for x in ([3.0, 2.5], [3.0, 9.0])]
    np.testing.assert_allclose([x["alignment"] for x in parts], [2.5, 9.0], rtol=1e-12)
    assert of(rings, north, [0.1, 2], Finish.length) is Outcome.malformed
    assert of(rings, north, [float("nan"), 2]) is Outcome.unverifiable
    assert of(rings, north, [1.0]) is Outcome.unverifiable
    prompt = Prompt("p", (65,), "", {"answer": ["red", "dark", "green", "blue"]})
    picture = -np.ones((3, 8, 8))
    picture[0, :4, :4] = picture[1, 4:, :4] = picture[2, 4:, 4:] = 1
    assert of(quilts, prompt, picture) is Outcome.correct
    assert of(quilts, prompt, picture[:, ::-1]) is Outcome.wrong
    picture[1, :4, :4] = 1
    assert of(quilts, prompt, picture) is Outcome.malformed
