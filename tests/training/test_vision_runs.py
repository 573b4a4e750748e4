"""Whole runs of a vision-language model: they learn to the bit after a stop, on ranks, and on rows of files."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from groupwise.checks.check_inputs import check_inputs
from groupwise.checks.check_result import CheckResult
from groupwise.config.recipe import Cluster, Recipe
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Usage
from groupwise.data import SAMPLED, Rollout, Sampling, pack
from groupwise.engines import NativeEngine, Served, Vllm
from groupwise.engines.no_engine import NoEngine
from groupwise.methods import bradley_terry, grpo, kto, sft
from groupwise.models import (
    Lora,
    VisionModel,
    find_model,
    find_template,
    merge,
    picture_of_pixels,
    read_model,
    read_tokenizer,
)
from groupwise.models.flow.latent_pictures import png, read_png
from groupwise.report.report import write_report
from groupwise.report.sample_pictures import prompt_pictures, read_sheet
from groupwise.rollout import RolloutSetting, answers
from groupwise.tasks import DataRows, Demonstrations, RowsTask, Shapes, named_task
from groupwise.tasks.shapes import draw_shapes
from groupwise.training.build_run import RunObjects, build
from groupwise.training.stored_answer_evaluation import held_out_step
from groupwise.verifiers import Exact
from groupwise.verifiers.no_verifier import NoVerifier
from tests.faults.small_runs import lines, run_recipe
from tests.models.vision_directories import vision_directory

RECIPE = Recipe(model="shapes", task=named_task("shapes"), method=grpo(), sampling=Sampling(max_tokens=3))


def check(recipe: Recipe) -> CheckResult:
    return check_inputs(recipe, UserCode(), fetch=False)


def shapes_run(directory: Path, iterations: int, stop_at: int = 0, **changes: Any) -> Path:
    fields = {"prompts": 2, "evaluate.samples": 1, "optimizer.lr_scheduler": "constant", **changes}
    return run_recipe(directory, "shapes", iterations, stop_at, fields)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(read_model(run / "model").state_dict())


def test_a_run_resumes_to_the_bit_with_its_pictures(tmp_path: Path) -> None:
    whole, cut = shapes_run(tmp_path / "whole", 3), shapes_run(tmp_path / "cut", 3, stop_at=2)
    assert lines(whole)[-1]["iteration"] == 3 and lines(whole)[1]["grad_norm"] > 0
    names = [f"samples/00000{i}{suffix}" for i in (1, 2, 3) for suffix in (".jsonl", ".safetensors", ".png")]
    for name in [*names, "model/model.safetensors", "model/preprocessor_config.json"]:
        assert (whole / name).read_bytes() == (cut / name).read_bytes(), name
    assert lines(whole)[1]["sampling/sampling_logp_difference/max"] < 1e-5
    trained, start = weights(whole), read_model(find_model("shapes")).state_dict()
    assert all((x != start[name]).any() for name, x in trained.items() if "k_proj.bias" not in name)


@pytest.mark.slow
def test_two_ranks_have_the_bits_of_two_lanes(tmp_path: Path) -> None:
    """A rank gets the pictures of its own microbatches, also of those that it did not have in the first step."""
    fields = {"cluster.reduction_lanes": 2, "method.minibatches": 2, "method.epochs": 2}
    one, two = (shapes_run(tmp_path / str(n), 2, **fields, **{"cluster.ranks": n}) for n in (1, 2))
    for name in ("metrics.jsonl", "model/model.safetensors", "samples/000002.jsonl"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert lines(one)[1]["grad_norm"] > 0


def test_a_frozen_tower_keeps_its_weights_and_gives_the_logprobs_of_the_engine(tmp_path: Path) -> None:
    run = shapes_run(tmp_path / "run", 2, freeze_vision_tower="true")
    trained, start = weights(run), read_model(find_model("shapes")).state_dict()
    changed = {name for name, x in trained.items() if (x != start[name]).any()}
    assert changed and not [name for name in changed if "vision_model" in name or "connector" in name]
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-5 for line in lines(run)[1:])


def test_a_qwen_model_is_trained_with_its_tower(tmp_path: Path) -> None:
    directory = vision_directory("qwen2_5_vl")
    bonus = '[{kind = "EntropyBonus", coefficient = 0.1}]'  # answers of random weights are all wrong
    changes = {"model": directory, "method.objective.penalties": bonus, "method.models": "{}"}
    run = shapes_run(tmp_path / "run", 2, **changes)
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-5 for line in lines(run)[1:])
    trained, start = weights(run), read_model(directory).state_dict()
    assert all((x != start[name]).any() for name, x in trained.items()), "all weights are trained"
    assert read_tokenizer(run / "model").picture_processor == read_tokenizer(directory).picture_processor


def test_lag_and_a_reference_model_see_the_pictures(tmp_path: Path) -> None:
    changes = {"cluster.max_staleness": 1, "method.objective.penalties.0.coefficient": 0.1}
    run = shapes_run(tmp_path / "run", 2, **changes)
    assert lines(run)[-1]["iteration"] == 2
    assert all(np.isfinite(line["loss"]) for line in lines(run)[1:])


def test_a_sample_file_and_the_report_have_the_pictures_of_the_prompts(tmp_path: Path) -> None:
    run = shapes_run(tmp_path / "run", 1)
    file = run / "samples" / "000001.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    sheet = read_sheet(file)
    for row in rows:
        (box,) = row["prompt_pictures"]
        left, top, width, height = box["box"]
        assert sheet is not None and (width, height) == (32, 32)
        number = int(row["prompt_id"].partition("/")[2])
        assert (sheet[top : top + height, left : left + width] == draw_shapes(number)[2]).all()
        (uri,) = prompt_pictures(row, sheet)["prompt_pictures"]
        assert uri.startswith("data:image/png;base64,")
    write_report([run], run / "report.html")
    page = (run / "report.html").read_text()
    assert "img-src data:;" in page and prompt_pictures(rows[0], sheet)["prompt_pictures"][0] in page


@pytest.mark.parametrize(
    "boxes", [7, [7], [{}], [{"box": [0, 0, 1], "scale": 1}], [{"box": [-3, 0, 2, 2], "scale": 1}], [[]], [None] * 999]
)
def test_a_damaged_line_has_no_picture(boxes: Any) -> None:
    assert prompt_pictures({"prompt_pictures": boxes}, np.zeros((4, 4, 3), np.uint8)) == {}


def rows_file(folder: Path) -> Path:
    folder.mkdir()
    rows = []
    for number in range(8):
        colour, counts, pixels = draw_shapes(number)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append({"prompt": colour, "image": f"{number}.png", "answer": counts[colour]})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def test_files_have_the_run_of_the_generated_pictures(tmp_path: Path) -> None:
    """Prompts of rows are those of the task: equal ids and content hashes."""
    path = rows_file(tmp_path / "data")
    result = check(replace(RECIPE, task=DataRows(str(path)), verifier=Exact(), prompts=2))
    assert not result.errors, result.errors
    assert result.inputs is not None
    found = {p.text + p.content_hash: p for p in (*result.inputs.task.held_out, *result.inputs.task.training)}
    own = check(RECIPE)
    assert own.inputs is not None and not own.errors
    for prompt in own.inputs.task.held_out[:8]:
        row = found[prompt.text + prompt.content_hash]
        assert (row.token_ids, row.pictures) == (prompt.token_ids, prompt.pictures)
        assert row.row["answer"] == prompt.row["answer"]
    run = shapes_run(tmp_path / "run", 1, task=str(path), verifier="exact")
    assert lines(run)[-1]["iteration"] == 1


def test_an_adapter_is_in_the_decoder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    original = VisionModel._computed
    monkeypatch.setattr(VisionModel, "_computed", lambda self, h: computed.append(h) or original(self, h))
    changes = {"lora.rank": 2, "method.models": "{}", "method.objective.penalties": "[]", "evaluate.problems": 1}
    whole = shapes_run(tmp_path / "whole", 3, **changes)
    assert len(computed) == len(set(computed)), "the tower is frozen: features are computed once in a run"
    cut = shapes_run(tmp_path / "cut", 3, stop_at=2, **changes)
    file = "model/adapter_model.safetensors"
    assert (whole / file).read_bytes() == (cut / file).read_bytes()
    adapter = load_file(whole / file)
    assert len(adapter) == 2 * 2 * 7 and all("text_model.layers" in name for name in adapter)
    assert any(x.any() for name, x in adapter.items() if "lora_B" in name), "it was trained"
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-5 for line in lines(whole)[1:])
    model, start = read_model(whole / "model"), read_model(find_model("shapes"))
    assert isinstance(model, VisionModel) and isinstance(start, VisionModel)
    merge(model)
    changed = {name for name, x in model.state_dict().items() if (x != start.state_dict()[name]).any()}
    assert changed and all("text_model.layers" in name for name in changed)


def stored_rows(folder: Path) -> dict[str, Path]:
    """Equal rows in the forms of a prompt and an answer, of messages with parts, and of a preference pair."""
    folder.mkdir()
    rows: dict[str, list[dict[str, Any]]] = {"completion": [], "messages": [], "pair": []}
    for number in range(8):
        colour, counts, pixels = draw_shapes(number)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        right, file = str(counts[colour]), f"{number}.png"
        question = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": colour}]}
        answer = {"role": "assistant", "content": [{"type": "text", "text": right}]}
        rows["completion"].append({"prompt": colour, "completion": right, "image": file, "label": True})
        rows["messages"].append({"messages": [question, answer], "images": [file]})
        pair = {"chosen": [answer], "rejected": [{"role": "assistant", "content": str((counts[colour] + 1) % 5)}]}
        rows["pair"].append({"prompt": [question], **pair, "images": [file]})
    for name, each in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    return {name: folder / f"{name}.jsonl" for name in rows}


def test_stored_answers_to_pictures(tmp_path: Path) -> None:
    """Rows with a prompt and with messages are the same, and a pair's first loss is ln 2."""
    files = stored_rows(tmp_path / "data")
    rows = lines(stored_run(tmp_path / "rows", "sft", files["completion"]))
    chats = lines(stored_run(tmp_path / "chats", "sft", files["messages"]))
    assert [line["loss"] for line in rows[1:]] == [line["loss"] for line in chats[1:]]
    assert rows[0]["eval/loss"] == chats[0]["eval/loss"] > 0
    pairs = lines(stored_run(tmp_path / "pairs", "dpo", files["pair"]))
    assert abs(pairs[1]["loss"] - math.log(2)) < 1e-6 and pairs[-1]["loss"] < pairs[1]["loss"]


def written_rollouts(objects: RunObjects) -> list[Rollout]:
    """The stored answers of the held-out rows, as samples."""
    recipe = objects.recipe
    setting = RolloutSetting(
        engine=NoEngine(), verifier=NoVerifier(), tokenizer=read_tokenizer(find_model("shapes")),
        sampling=recipe.sampling, seed=0,
    )  # fmt: skip
    return asyncio.run(answers(objects.held_out, 1, setting, strategy=recipe.method.strategy))


def test_the_other_prompt_of_a_stored_answer_has_its_own_pictures(tmp_path: Path) -> None:
    """KTO's reference point: an answer after the prompt of another row, text and pictures."""
    file = stored_rows(tmp_path / "data")["completion"]
    recipe = replace(RECIPE, task=DataRows(str(file)), method=kto(), prompts=4)
    objects = build(recipe, UserCode())
    rollouts = written_rollouts(objects)
    prompts = [rollout.draw.prompt for rollout in rollouts]
    for rollout, other in zip(rollouts, [*prompts[1:], prompts[0]]):
        (sample,) = rollout.samples
        batch, which = pack([rollout], max_tokens=3).under("other_prompt")
        assert which.all() and batch.samples[0].context_key == (other.content_hash, other.token_ids)
        turned = sample.under("other_prompt")
        assert turned.content_hash == other.content_hash
        assert turned.under(SAMPLED).context_key == sample.context_key
    run = lines(stored_run(tmp_path / "kto", "kto", file))
    assert abs(run[1]["loss"] - 0.5) < 1e-6 and run[-1]["loss"] != run[1]["loss"]


def test_an_engine_scores_answers_to_pictures_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPO scores the last answer to a prompt again when the prompt returns."""
    scored: list[int] = []
    score = NativeEngine.score

    async def counted(self: NativeEngine, *arguments: Any, **settings: Any) -> tuple[float, ...]:
        scored.append(len(settings["pictures"]))
        return await score(self, *arguments, **settings)

    monkeypatch.setattr(NativeEngine, "score", counted)
    changes = {
        "method": "spo",
        "method.minibatches": 1,
        "task": rows_file(tmp_path / "data"),
        "verifier": "exact",
        "evaluate.samples": 1,
    }
    run = lines(run_recipe(tmp_path / "run", "shapes", 4, 0, {"prompts": 4, **changes}, group_size=False))
    assert run[-1]["iteration"] == 4 and scored and set(scored) == {1}


def test_each_rank_stores_the_pictures_of_held_out_answers(tmp_path: Path) -> None:
    """A rank gets the rollouts and none of the tasks."""
    recipe = replace(RECIPE, task=DataRows(str(stored_rows(tmp_path / "data")["completion"])), method=sft(), prompts=4)
    objects = build(recipe, UserCode())
    rollouts = written_rollouts(objects)
    step = held_out_step(objects.recipe, objects.new_learner(), rollouts)
    assert step.tokens and step.logp_old.isfinite().all()


def stored_run(directory: Path, method: str, rows: Path) -> Path:
    changes = {"method": method, "task": rows, "evaluate.samples": 1, "prompts": 4, "optimizer.lr": 0.003}
    return run_recipe(directory, "shapes", 2, 0, changes, group_size=False)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "red", "completion": "1", "image": "x.png"}, "cannot be read"),
        ({"text": "red 1", "image": "0.png"}, "a whole text has no place for pictures"),
        (
            {
                "messages": [
                    {"role": "user", "content": "red"},
                    {"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": "1"}]},
                ],
                "image": "0.png",
            },
            "pictures are before the first answer",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "completion": "1"},
            "1 pictures, and its columns 0",
        ),
    ],
)
def test_stored_rows_whose_pictures_do_not_fit_are_refused(row: dict[str, Any], why: str, tmp_path: Path) -> None:
    files = stored_rows(tmp_path / "data")
    files["pair"].write_text(json.dumps(row) + "\n")
    with pytest.raises(BadData) as caught:
        DataRows(str(files["pair"])).build(
            find_template("no", read_tokenizer(find_model("shapes"))), rows="stored texts"
        )
    assert why in caught.value.evidence


def test_demonstrations_of_a_warm_start_have_pictures(tmp_path: Path) -> None:
    files = stored_rows(tmp_path / "data")
    template = find_template("no", read_tokenizer(find_model("shapes")))
    shown = Demonstrations(str(files["messages"])).build(template)
    stored = DataRows(str(files["completion"])).build(template, rows="stored")
    assert isinstance(stored, RowsTask)
    found = {(p.token_ids, p.pictures) for p in (*stored.training, *stored.held_out)}
    assert len(found) == 8 and {(p.token_ids, p.pictures) for p in shown.training} == found


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "an adapter of the tower": (
        {"lora": Lora(rank=2, target_modules=("out_proj",))},
        "no linear layer is called 'out_proj'",
    ),
    "native engines elsewhere": ({"engine": Served()}, "engines in other processes cannot run this model"),
    "heads that vLLM lacks": ({"engine": Vllm(replicas=1)}, "vLLM cannot run this model"),
    "shards": ({"cluster": Cluster(ranks=2, shard="full")}, "cluster.shard is full, and this run cannot be sharded"),
    "a reward model": ({"method": bradley_terry()}, "cannot be trained as a reward model"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_settings_are_refused(name: str) -> None:
    changes, what = UNFIT[name]
    errors = check(replace(RECIPE, **changes)).errors
    assert any(isinstance(error, Usage) and what in error.what and error.fix for error in errors), errors


def test_a_text_model_has_no_tower_and_takes_no_pictures() -> None:
    text = Recipe(method=grpo(), freeze_vision_tower=True, sampling=Sampling(max_tokens=8))
    assert any("freeze_vision_tower does not fit calculator" in error.what for error in check(text).errors)
    errors = check(replace(RECIPE, model="calculator")).errors
    assert any("the model takes none" in error.what for error in errors)


def test_problems_are_keyed_and_held_out_ones_are_others() -> None:
    colour, counts, pixels = draw_shapes(5)
    again = draw_shapes(5)
    assert (again[0], again[1]) == (colour, counts) and (again[2] == pixels).all()
    training, held_out = Shapes().problems()
    assert not set(held_out) & {training[0], training[len(training) - 1]} and len(held_out) == 256
    pictures = {
        picture_of_pixels(draw_shapes(i)[2]).sha256 for i in (*held_out, training[0], training[len(training) - 1])
    }
    assert len(pictures) == 258
    answers = [draw_shapes(i)[1][draw_shapes(i)[0]] for i in held_out]
    assert {*answers} == {0, 1, 2, 3, 4} and max(map(answers.count, {*answers})) < 80
    assert (read_png(png(pixels)) == pixels).all()
