"""Runs that train a reward model, and runs that are rewarded by one."""

import asyncio
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file

import groupwise as gw
from groupwise.__main__ import main
from groupwise.checks.check_classifier import training_errors
from groupwise.config.recipe import Recipe
from groupwise.config.user_code import UserCode
from groupwise.data import TEMPLATE, WRITTEN, Draw
from groupwise.learner import AdamW
from groupwise.models import SequenceClassifier, find_model, find_template, merge, read_model, read_tokenizer
from groupwise.models.classifier.classifier_input_encoder import ClassifierInputEncoder
from groupwise.models.decoder.decoder import ModelSizes
from groupwise.training.build_run import build
from tests.commands.test_bad_input import error_of, rows
from tests.faults.small_runs import Quick, begin, begun, left, lines, ran, reopen, run_from
from tests.rollout.fakes import FakeEngine, sampler_of
from tests.training.test_stored_runs import PAIRS
from tests.verifiers.test_reward_model import chat_model

pytestmark = pytest.mark.usefixtures("home")

TARGETS = ("self_attn.q_proj", "mlp.down_proj")
ADAPTER = gw.Lora(rank=2, target_modules=("q_proj", "down_proj"))
SMALL: dict[str, Any] = {"prompts": 4, "iterations": 3, "optimizer": AdamW(lr=1e-3)}


def recipe(**changes: Any) -> Recipe:
    return Recipe(method=gw.bradley_terry(), task=rows("rows.jsonl", *PAIRS), **(SMALL | changes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small trained reward model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home := tmp_path_factory.mktemp("trained"))
        ran(home / "run", recipe(iterations=8, prompts=8, evaluate=gw.Evaluate(every=4)))
        return home / "run"


def test_a_run_learns_to_prefer_the_chosen_answers(trained: Path) -> None:
    """From a head of zeros: the first loss is ln 2, and no answer is preferred. No metric speaks of a policy."""
    first, *_, last = (line for line in lines(trained) if "eval/loss" in line)
    assert first["eval/loss"] == pytest.approx(math.log(2), abs=1e-7) and first["eval/rewards/accuracies"] == 0.0
    assert lines(trained)[1]["loss"] == pytest.approx(math.log(2), abs=1e-7)
    assert last["eval/loss"] < 0.3 and last["eval/rewards/accuracies"] == 1.0
    assert last["eval/rewards/chosen"] > last["eval/rewards/rejected"] and last["rewards/margins"] > 0
    names = {name.partition("/")[0] for line in lines(trained) for name in line}
    assert not names & {"entropy", "ratio", "advantage", "reward", "outcome", "score", "groups", "kl"}
    assert "eval/mean_token_accuracy" not in last and "eval/accuracy_greedy" not in last


def test_transformers_loads_the_model_with_equal_scores(trained: Path) -> None:
    import transformers

    path, tokenizer = trained / "model", transformers.AutoTokenizer.from_pretrained(trained / "model")
    model, notes = transformers.AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True)
    assert not any(notes.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    texts = [row["prompt"] + row[side] + tokenizer.eos_token for row in PAIRS[:4] for side in ("chosen", "rejected")]
    tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    ours = read_model(path)
    assert isinstance(ours, SequenceClassifier)
    with torch.no_grad():
        theirs = model.eval()(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, 0]
        ids = [tuple(row[mask.bool()].tolist()) for row, mask in zip(batch.input_ids, batch.attention_mask)]
        torch.testing.assert_close(ours.scores(ids), theirs, rtol=1e-5, atol=1e-5)
    assert theirs[0] > theirs[1]


def test_a_policy_is_rewarded_by_it(trained: Path) -> None:
    """Scores are no outcomes: nothing is an accuracy. The model's hash is part of the run."""
    run = gw.train(
        reward=gw.RewardModel(str(trained / "model")), method=gw.grpo(group_size=4, kl=0.0), iterations=2, prompts=2,
        max_tokens=16, evaluate=gw.Evaluate(problems=4),
    )  # fmt: skip
    assert {"reward", "score/mean", "eval/score_greedy", "outcome/scored"} <= set(run.metrics)
    assert not [name for name in run.metrics if "accuracy" in name or name.startswith("groups/all")]
    assert run.metrics["subscores/truncated"][1] == 0.0 and run.metrics["outcome/scored"][1] == 1.0
    (directory,) = Path("runs").iterdir()
    assert len(json.loads((directory / "run.json").read_text())["reward_models"]) == 1
    assert main(["eval", str(directory), "--samples", "1", "--problems", "2", "--out", "e.json"]) == 0
    (result, *_) = json.loads(Path("e.json").read_text())["results"]
    assert len(result["protocol"]["verifier"]["reward_models"]) == 1


def rewarded(model: Path, **changes: Any) -> Recipe:
    return Recipe(
        method=gw.grpo(group_size=4, kl=0.0), verifier=gw.RewardModel(str(model)), prompts=2, iterations=3,
        sampling=gw.Sampling(max_tokens=12), evaluate=gw.Evaluate(problems=2), save=gw.Save(every=1), **changes,
    )  # fmt: skip


def test_resume_refuses_another_reward_model(trained: Path, home: Path) -> None:
    shutil.copytree(trained / "model", home / "rm")
    saved = rewarded(home / "rm")
    (home / "run").mkdir()
    begin(home / "run", build(saved, UserCode()), UserCode())
    reopen(home / "run", UserCode())
    (home / "rm" / "generation_config.json").write_text("{}")
    with pytest.raises(gw.BadData, match="a reward model of the verifier differs"):
        reopen(home / "run", UserCode())


@pytest.mark.parametrize("kind", ["trains", "trains an adapter", "is rewarded"])
def test_a_stopped_run_resumes_to_the_same_bytes(kind: str, trained: Path, home: Path) -> None:
    lora = ADAPTER if kind == "trains an adapter" else None
    saved = recipe(iterations=4, save=gw.Save(every=1), evaluate=gw.Evaluate(every=2), lora=lora)
    saved = saved if kind.startswith("trains") else rewarded(trained / "model")
    whole = left(ran(home / "whole", saved))
    run_from(begun(home / "cut", saved), build(saved, UserCode()), stop_after=0.0, disk=Quick())
    run_from(home / "cut", build(saved, UserCode()), disk=Quick())
    assert left(home / "cut") == whole


@pytest.mark.parametrize(("shard", "lora"), [("none", None), ("full", ADAPTER)], ids=["replicas", "shards of LoRA"])
def test_two_ranks_have_the_bits_of_two_lanes(
    shard: Literal["none", "full"], lora: gw.Lora | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the written models, the held-out metrics, and the checkpoint, which shards store in another form.

    Of shards no rank reads a whole model.
    """

    def written(run: Path) -> dict[str, bytes]:
        folders = ("samples", "model", "models/*", *(() if shard == "full" else ("checkpoints/*",)))
        files = [run / "metrics.jsonl", *(path for name in folders for path in run.glob(f"{name}/*.*"))]
        return {str(path.relative_to(run)): path.read_bytes() for path in files if path.suffix != ".json"}

    lanes = recipe(cluster=gw.Cluster(reduction_lanes=2), lora=lora, save=gw.Save(export_every=2))
    ranks = replace(lanes, cluster=gw.Cluster(ranks=2, reduction_lanes=2, shard=shard))
    one = written(ran(home / "one", lanes))
    if shard == "full":
        monkeypatch.setattr("groupwise.training.build_run.read_policy", None)
    assert written(ran(home / "two", ranks)) == one
    assert {"model/model.safetensors", "models/000002/model.safetensors"} < one.keys() and len(one) > 5


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small reward model that was trained with an adapter on its layers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home := tmp_path_factory.mktemp("adapted"))
        settings = SMALL | {"iterations": 4, "prompts": 8, "lora": ADAPTER, "save": gw.Save(every=2)}
        return home / gw.train(method=gw.bradley_terry(), data=PAIRS, **settings).directory


def test_an_adapter_is_added_to_the_written_layers(adapted: Path, home: Path) -> None:
    """transformers loads plain layers with our scores. The adapter and the head were trained, and nothing else."""
    info = json.loads((adapted / "run.json").read_text())
    assert info["adapter"] == "2,400 trained weights, 223,520 frozen weights" and len(info["base_sha256"]) == 64
    assert info["adapter"] in (adapted / "report.html").read_text()
    assert not (adapted / "model" / "adapter_config.json").exists()
    base, ours = (load_file(path / "model.safetensors") for path in (find_model("calculator"), adapted / "model"))
    moved = {name for name, x in ours.items() if name == "score.weight" or not torch.equal(x, base[name])}
    assert moved == {"score.weight", *(f"model.layers.{i}.{t}.weight" for i in (0, 1) for t in TARGETS)}
    assert base.keys() == ours.keys() - {"score.weight"} and ours["score.weight"].count_nonzero() == 96
    assert first_scores(adapted / "model")[0] == pytest.approx(first_scores(adapted / "model")[1], abs=1e-5)


def first_scores(path: Path) -> tuple[list[float], list[float]]:
    """The scores of some texts here, and by transformers."""
    import transformers

    tokenizer = read_tokenizer(path)
    texts = [(*tokenizer.encode(row["prompt"] + row["chosen"]), *tokenizer.eos_ids) for row in PAIRS[:3]]
    ours, theirs = read_model(path), transformers.AutoModelForSequenceClassification.from_pretrained(path)
    assert isinstance(ours, SequenceClassifier)
    with torch.no_grad():
        return ours.scores(texts).tolist(), [float(theirs.eval()(torch.tensor([ids])).logits[0, 0]) for ids in texts]


@pytest.mark.parametrize("kind", ["adapter", "whole"])
def test_a_checkpoint_is_exported_as_the_finished_model_is(kind: str, adapted: Path, trained: Path, home: Path) -> None:
    """Also in another dtype, for an adapter is part of the layers."""
    run, last = (adapted, 4) if kind == "adapter" else (trained, 8)
    shutil.copytree(run, home / "run")
    shutil.rmtree(home / "run" / "model")
    gw.export(home / "run", home / "out", at=last)
    weights = [load_file(path / "model.safetensors") for path in (home / "out", run / "model")]
    assert weights[0].keys() == weights[1].keys() and all(torch.equal(x, weights[1][k]) for k, x in weights[0].items())
    gw.export(home / "run", home / "half", at=last, dtype="bfloat16")
    half = load_file(home / "half" / "model.safetensors")
    assert all(torch.equal(x, weights[1][name].bfloat16()) for name, x in half.items())


def test_a_reward_model_is_trained_on_a_trained_adapter(home: Path) -> None:
    """The adapter of a language model is trained further, beside a new head, and added to the layers."""
    demonstrations = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS]
    few: dict[str, Any] = {"iterations": 2, "prompts": 8, "evaluate": gw.Evaluate(problems=2)}
    shown = gw.train(method=gw.sft(), data=demonstrations, lora=ADAPTER, optimizer=AdamW(lr=1e-2), **few)
    model = str(shown.directory / "model")
    liked = gw.train(model=model, method=gw.bradley_terry(), data=PAIRS, optimizer=AdamW(lr=1e-2), **few)
    assert json.loads((liked.directory / "run.json").read_text())["adapter"].startswith("2,400 trained weights")
    merged = read_model(model)
    merge(merged)
    policy, ours = merged.state_dict(), load_file(liked.directory / "model" / "model.safetensors")
    moved = {name for name, x in ours.items() if name == "score.weight" or not torch.equal(x, policy[name])}
    assert moved == {"score.weight", *(f"model.layers.{i}.{t}.weight" for i in (0, 1) for t in TARGETS)}


def test_a_reward_model_is_trained_further(trained: Path) -> None:
    run = gw.train(model=str(trained / "model"), method=gw.bradley_terry(), data=PAIRS, iterations=1, prompts=8)
    assert run.metrics["loss"][1] < 0.4, "its own head, not a new one"


def test_training_reads_the_tokens_that_the_verifier_reads(home: Path) -> None:
    """In a chat template the sample ends as the whole conversation ends: with a line end after the end token."""
    path = chat_model(home / "chat")
    config = json.loads((path / "config.json").read_text())
    texts = ClassifierInputEncoder.read(path, config)
    template = find_template("chat", texts.tokenizer)
    prompt = gw.Prompt("p", template("a b"), "a b", {"chosen": "c", "rejected": "b c"})
    draw = Draw(0, prompt, 2)
    sampler = sampler_of(FakeEngine(None), draw, encode_prompt=template, tokenizer=texts.tokenizer)
    samples = asyncio.run(gw.bradley_terry().strategy(draw, sampler)).samples
    for sample, answer in zip(samples, ("c", "b c"), strict=True):
        messages = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": answer}]
        assert (*sample.context, *sample.tokens) == texts("a b", messages, answer, finished=True).tokens
        assert sample.origin.count(WRITTEN) == len(texts.tokenizer.encode(answer)) and sample.origin[-1] == TEMPLATE


def test_the_last_message_names_the_command_that_uses_the_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows("pairs.jsonl", *PAIRS)
    words = ("--method", "bradley_terry", "--task", "pairs.jsonl", "--iterations", "1", "--prompts", "4")
    few = ("--evaluate.problems", "2")
    assert main(["train", *words, *few, "--name", "liked"]) == 0
    out = capsys.readouterr().out
    assert "--verifier.kind RewardModel --verifier.path runs/liked" in out and "groupwise sample" not in out
    command = next(line for line in out.splitlines() if "RewardModel" in line).partition("groupwise ")[2].split()
    short = ("--prompts", "4", "--method.group_size", "2", "--sampling.max_tokens", "12")
    assert main([*command, "--iterations", "1", *short, *few]) == 0


def test_refusals(trained: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows("pairs.jsonl", *PAIRS)
    words = ("train", "--task", "pairs.jsonl", "--method", "bradley_terry")
    head = ("--lora.rank", "2", "--lora.target_modules", '["score"]')
    assert "'score' is the head or the embedding" in error_of(capsys, 2, *words, *head)
    assert "a reward model generates no answers" in error_of(capsys, 2, *words, "--reward", "last_number")
    assert "trained in the template '+{prompt}'" in error_of(capsys, 2, *words, "--template", "+{prompt}")
    rows("odd.jsonl", *PAIRS[:4], {**PAIRS[4], "margin": "much"})
    assert "field 'margin' is 'much'" in error_of(capsys, 3, "train", "--task", "odd.jsonl", *words[3:])
    (error,) = training_errors(
        recipe(), ModelSizes(vocabulary_size=4, layers=1, kv_heads=1, head_dim=2, max_positions=8)
    )
    assert "cannot be trained as a reward model" in error.what
    model = str(trained / "model")
    assert "is a reward model: it scores texts" in error_of(capsys, 2, "train", "--model", model)
    assert "is a reward model: it scores texts" in error_of(capsys, 2, "train", "--method", "sft", "--model", model,
                                                            "--task", "pairs.jsonl")  # fmt: skip
    for command in (("eval", model, "--task", "calculator"), ("sample", model, "7*5=")):
        assert main([*command]) == 2
        assert "a reward model scores texts, and generates none" in capsys.readouterr().err
