"""Runs of methods of stored answers: what is trained, held-out metrics, epochs, resume, and refusals."""

import asyncio
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import groupwise as gw
from groupwise.__main__ import main
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import read_with_problems
from groupwise.config.user_code import UserCode
from groupwise.data import ENVIRONMENT, TEMPLATE, WRITTEN, Draw
from groupwise.engines.no_engine import NoEngine
from groupwise.learner import AdamW
from groupwise.models import PrefixPacking, find_model, read_model
from groupwise.report.read_run import read
from groupwise.report.report import page_data
from groupwise.report.run_warnings import find_warnings, headline
from groupwise.rollout.sampling_round import SamplingRound
from groupwise.runs.best_checkpoint import best_iteration, describe_best, held_out_values
from groupwise.training.build_run import build
from tests.commands.test_bad_input import error_of, rows
from tests.faults.small_runs import Quick, begun, left, lines, ran, run_from
from tests.rollout.fakes import FakeEngine, sampler_of

pytestmark = pytest.mark.usefixtures("home")


def pair(a: int, b: int) -> dict[str, Any]:
    return {"prompt": f"{a}*{b}=", "chosen": f"{a}*{b}={a * b};#{a * b}", "rejected": f"#{a * b + 1}"}


PAIRS = [pair(a, b) for a in range(2, 8) for b in range(2, 6)]
DEMOS = [{"prompt": p["prompt"], "completion": p["chosen"]} for p in PAIRS]
LABELLED = [
    {"prompt": p["prompt"], "completion": p[name], "label": name == "chosen"}
    for p, name in zip(PAIRS, ("chosen", "rejected") * 12)
]
SMALL = {"prompts": 4, "optimizer": AdamW(lr=1e-3), "iterations": 3}


def recipe(method: gw.Method, data: list[dict[str, Any]] = PAIRS, **changes: Any) -> Recipe:
    return Recipe(method=method, task=rows("rows.jsonl", *data), **(SMALL | changes))


@pytest.mark.parametrize("name", ["sft", "dpo", "ipo", "simpo", "orpo", "kto", "kto on pairs"])
def test_each_method_lowers_its_held_out_loss(name: str, home: Path) -> None:
    """With one line of the library. No verifier and no engine is needed."""
    data, method = {"sft": DEMOS, "kto": LABELLED}.get(name, PAIRS), name.split()[0]
    run = gw.train(method=getattr(gw, method)(), data=data, iterations=8, prompts=8, optimizer=AdamW(lr=3e-4))
    before, after = run.metrics["eval/loss"][0], run.metrics["eval/loss"][8]
    assert after < before, (before, after)
    assert "reward" not in run.metrics and "outcome/correct" not in run.metrics
    if name in ("dpo", "ipo"):
        assert run.metrics["loss"][1] == pytest.approx({"dpo": math.log(2), "ipo": 25.0}[name], abs=1e-6)
    if data is PAIRS and method != "kto":
        assert run.metrics["eval/rewards/accuracies"][8] >= run.metrics["eval/rewards/accuracies"][0]


def test_the_held_out_loss_is_that_of_the_answers_tokens(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a plain forward of each held-out answer. The terminal leads with it."""
    objects = build(recipe(gw.sft(), DEMOS), UserCode())
    assert isinstance(objects.engine, NoEngine)
    model, tokenizer = read_model(find_model("calculator"), dtype=torch.float32), objects.tokenizer
    total, count, likeliest = 0.0, 0, 0
    for prompt in objects.held_out:
        answer = (*tokenizer.encode(prompt.row["completion"]), *tokenizer.eos_ids)
        for t, token in enumerate(answer):
            hidden = hidden_after(model, prompt.token_ids + answer[:t])
            logp = torch.log_softmax(hidden, -1)
            total, count = total - float(logp[token]), count + 1
            likeliest += int(logp.argmax()) == token
    run = ran(home / "run", recipe(gw.sft(), DEMOS, iterations=1))
    first = lines(run)[0]
    assert first["eval/loss"] == pytest.approx(total / count, abs=1e-6)
    assert first["eval/mean_token_accuracy"] == pytest.approx(likeliest / count, abs=1e-12)
    shown = capsys.readouterr().err
    assert f"0/1  held-out loss {first['eval/loss']:.3f}  token accuracy" in shown
    assert re.search(rf"1/1  held-out loss \S+  token accuracy \S+  loss {lines(run)[1]['loss']:.3f}\n", shown)


def hidden_after(model: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        layout = PrefixPacking.of([tokens[:-1] or tokens], [(tokens[-1], 0)] if tokens[:-1] else [(0,)])
        return model.head(model(layout.tokens, layout))[layout.predicting_indices[-1]]


def test_only_the_assistants_turns_are_trained() -> None:
    talk = [
        {"role": "assistant", "content": "7*5=35"},
        {"role": "user", "content": "+8"},
        {"role": "assistant", "content": "#43"},
    ]
    prompt = gw.Prompt("p", (1, 2), "?", {"completion": talk})
    draw = Draw(3, prompt, 1)
    sampler = sampler_of(FakeEngine(None), draw, observation_frame_ids=((5,), (6,)))
    (sample,) = asyncio.run(gw.sft().strategy(draw, sampler)).samples
    assert [sample.text[a:b] for a, b in spans(sample)] == ["7*5=35", "#43"]
    assert set(sample.origin) == {WRITTEN, ENVIRONMENT, TEMPLATE}
    assert sample.limit == len(sample.tokens) and sample.verdict.value == 1.0


def spans(sample: Any) -> list[tuple[int, int]]:
    """The text of each trained turn, without its end token."""
    ends = (0, *sample.token_ends)
    return [(ends[a], ends[b - 1]) for a, b in sample.turns]


def test_a_sample_has_the_next_prompt_of_its_round() -> None:
    """That of the last draw is the first one; a draw alone has none."""

    async def views(*draws: int) -> list[dict[str, Any]]:
        one_round = SamplingRound(draws)
        samplers = [
            replace(sampler_of(FakeEngine(None), Draw(i, gw.Prompt(str(i), (i,), "?", {"completion": "1"}), 1)),
                    shared_round=one_round)
            for i in draws
        ]  # fmt: skip
        rollouts = await asyncio.gather(*(gw.kto().strategy(s.draw, s) for s in samplers))
        return [dict(rollout.samples[0].prompt_views) for rollout in rollouts]

    other = "other_prompt"
    assert asyncio.run(views(3, 5, 9)) == [{other: (5,)}, {other: (9,)}, {other: (3,)}]
    assert asyncio.run(views(3)) == [{}]


def test_the_best_checkpoint_has_the_lowest_loss() -> None:
    values = held_out_values([{"iteration": i, "eval/loss": x} for i, x in enumerate((1.0, 0.5, 0.7))])
    assert best_iteration(values, values) == 1
    assert describe_best(values, 1) == "held-out loss 0.500 at iteration 1, of 3 evaluations"


@pytest.mark.parametrize("name", ["sft", "dpo", "kto"])
def test_a_stopped_run_resumes_to_the_same_bytes(name: str, home: Path) -> None:
    method = getattr(gw, name)()
    data = {"sft": DEMOS, "kto": LABELLED}.get(name, PAIRS)
    saved = recipe(method, data, iterations=4, save=gw.Save(every=1), evaluate=gw.Evaluate(every=2))
    whole = left(ran(home / "whole", saved))
    objects = build(saved, UserCode())
    run_from(begun(home / "cut", saved), objects, stop_after=0.0, disk=Quick())
    run_from(home / "cut", build(saved, UserCode()), disk=Quick())
    assert left(home / "cut") == whole


def test_epochs_set_the_iterations_and_are_written_so(home: Path) -> None:
    """24 rows, of which a few are held out; a last iteration is begun, not cut."""
    run = gw.train(method="sft", data=DEMOS, epochs=2, prompts=8, optimizer=AdamW(lr=3e-4))
    (directory,) = Path("runs").iterdir()
    stats = json.loads((directory / "run.json").read_text())["data"][0]
    expected = -(-2 * stats["training"] // 8)
    text = (directory / "recipe.toml").read_text()
    assert f"iterations = {expected}\n" in text and "epochs = 2" not in text
    assert max(run.metrics["loss"]) == expected
    with pytest.raises(gw.Usage, match="epochs is 0"):
        gw.train(method="sft", data=DEMOS, epochs=0)


def test_the_command_trains_demonstrations(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows("demos.jsonl", *DEMOS)
    assert main(["train", "--method", "sft", "--task", "demos.jsonl", "--epochs", "1", "--prompts", "8"]) == 0
    out = capsys.readouterr()
    assert "held-out loss" in out.out and "groupwise sample runs/demos" in out.out
    (directory,) = Path("runs").iterdir()
    run = read(directory)
    assert find_warnings(run)[0] == []
    assert headline(run, 0).startswith("held-out loss ") and (directory / "report.html").is_file()


def test_with_a_verifier_generated_answers_are_evaluated_too(home: Path) -> None:
    data = [{**row, "answer": str(row["completion"]).rpartition("#")[2]} for row in DEMOS]
    run = gw.train(method="sft", data=data, reward="last_number", iterations=1, prompts=4, max_tokens=24)
    assert {"eval/loss", "eval/accuracy_greedy"} <= set(run.metrics)


@pytest.mark.parametrize("shard", ["none", "full"])
def test_two_ranks_have_the_bits_of_one_process(shard: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the held-out evaluation, in which both take part; the reference of dpo is sharded, too.

    Nothing is generated, so of shards no rank reads a whole model.
    """
    lanes = recipe(gw.dpo(), cluster=gw.Cluster(reduction_lanes=2))
    one = ran(home / "one", lanes)
    if shard == "full":
        monkeypatch.setattr("groupwise.training.build_run.read_policy", None)
    two = ran(home / "two", replace(lanes, cluster=gw.Cluster(ranks=2, reduction_lanes=2, shard=shard)))
    for name in ("metrics.jsonl", "samples/000003.safetensors", "model/model.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_refusals(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows("demos.jsonl", *DEMOS)
    words = ("train", "--task", "demos.jsonl", "--method")
    assert "needs the column 'chosen' of each row" in error_of(capsys, 2, *words, "dpo")
    assert "writes 2 for each prompt" in error_of(capsys, 2, *words, "dpo", "--method.group_size", "8")
    rows("long.jsonl", *DEMOS[:3], {"prompt": "1+1=", "completion": "1" * 200})
    message = error_of(capsys, 3, "train", "--method", "sft", "--task", "long.jsonl")
    assert "1 row is longer than the model's 128 positions" in message and "long/4" in message
    rows("odd.jsonl", *DEMOS[:3], {"prompt": "1+1=", "completion": "two"})
    message = error_of(capsys, 3, "train", "--method", "sft", "--task", "odd.jsonl")
    assert "1 of 4 rows have a stored answer that cannot be read" in message and "odd/4" in message


TEXTS_AS_LABELS = """\
from dataclasses import dataclass

from groupwise.data import Prompt, TaskSettings
from groupwise.tasks import RowsTask


@dataclass(frozen=True)
class TextsAsLabels(TaskSettings):
    def build(self, encode):
        row = {"completion": "35", "label": "false"}
        prompts = tuple(Prompt(str(i), encode("7*5="), "7*5=", row) for i in range(4))
        return RowsTask(prompts, prompts)
"""


def test_labels_that_are_texts_or_all_alike_are_seen(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method of labels weighs wanted answers against unwanted ones. The rows of a task in Python are checked too."""
    rows("alike.jsonl", *({**row, "label": True} for row in LABELLED))
    rows("both.jsonl", *LABELLED)
    assert main(["check", "--method", "kto", "--task", "alike.jsonl"]) == 0
    assert "all 24 answers are wanted, and none is unwanted: check the column 'label'" in capsys.readouterr().out
    assert main(["check", "--method", "kto", "--task", "both.jsonl"]) == 0
    assert "check the column" not in capsys.readouterr().out
    Path("own.py").write_text(TEXTS_AS_LABELS)
    assert main(["check", "--method", "kto", "--task", "own:TextsAsLabels", "--use", "own.py"]) == 3
    assert "0: the column 'label' is 'false': it must be true or false" in capsys.readouterr().out


def test_a_stored_run_has_no_answers_to_evaluate(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gw.train(method="sft", data=DEMOS, iterations=1, prompts=4)
    capsys.readouterr()
    (directory,) = Path("runs").iterdir()
    assert main(["eval", str(directory), "--samples", "1"]) == 2
    assert "has no verifier" in capsys.readouterr().err
    assert main(["sample", str(directory), "7*5="]) == 0


def test_the_report_of_stored_answers_has_no_map_of_solved_prompts(home: Path) -> None:
    """Rows are neither solved nor drawn from an engine: no metric of the rounds, and tiles of loss and accuracy."""
    run = gw.train(method="dpo", data=PAIRS, iterations=1, prompts=4)
    data = page_data([read(run.directory)])
    assert data["runs"][0]["map"]["rows"] == [] and not any(name.startswith("rollout/") for name in run.metrics)
    choices = [tile["metric_choices"][0] for tile in data["tiles"][:3]]
    assert choices == ["eval/loss", "eval/rewards/accuracies", "eval/mean_token_accuracy"]
    assert set(choices) <= run.metrics.keys()


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--method sft --task pairs.jsonl", "the rows are preference pairs: train them with --method dpo"),
        ("--method grpo --task pairs.jsonl", "the rows are preference pairs: train them with --method dpo"),
        ("--method dpo --task demos.jsonl", "the rows are demonstrations: train them with --method sft"),
        ("--method grpo --task demos.jsonl", "the rows are demonstrations: train them with --method sft"),
        ("--method dpo", "name a file whose rows have it: --task pairs.jsonl; docs/stored.md"),
        ("--method sft --task demos.jsonl --reward last_number", "--columns.answer NAME"),
        ("--method hill --task mine.jsonl", "use a task whose rows have it, such as hinted_sums"),
        ("--method sft --task calculator --verifier reward_model --verifier.path jugde", "did you mean judge?"),
    ],
)
def test_the_advice_fits_the_rows_and_the_kind_of_model(
    words: str, fix: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows("pairs.jsonl", *PAIRS[:3])
    rows("demos.jsonl", *DEMOS[:3])
    rows("mine.jsonl", {"prompt": "1+1=", "answer": 2}, {"prompt": "1+2=", "answer": 3})
    Path("judge").mkdir()
    assert main(["check", *words.split()]) != 0
    out = capsys.readouterr().out
    assert fix in out and "calculator, hinted_sums" not in out


def test_an_error_of_the_recipe_blames_no_row(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows("pairs.jsonl", *PAIRS[:3])
    for words, error in (
        ("--method dpo --prompts 0", "prompts is 0"),
        ("--method dpo --method.group_size 8", "set --method.group_size 2"),
        ("--method reward", "write 'bradley_terry', its name here"),
    ):
        assert main(["check", "--task", "pairs.jsonl", *words.split()]) == 2
        out = capsys.readouterr().out
        assert error in out and "pairs.jsonl" not in out and "1 error" in out
    assert main(["check", "--model", "nowhere", "--prompts", "0"]) != 0
    assert "there is no model at nowhere" in capsys.readouterr().out


def test_pairs_with_equal_answers_are_noted_with_their_rows(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = {"prompt": "9*9=", "chosen": "#81", "rejected": "#81"}
    rows("pairs.jsonl", *PAIRS[:6], same)
    rows("good.jsonl", *PAIRS[:6])
    assert main(["check", "--method", "dpo", "--task", "pairs.jsonl"]) == 0
    assert "note: 1 pair has equal answers, which teach no preference and count in all means: pairs/7\n" in (
        capsys.readouterr().out
    )
    assert main(["check", "--method", "kto", "--task", "pairs.jsonl"]) == 0
    assert "note: 1 answer is both wanted and unwanted for the same prompt, which teaches no preference\n" in (
        capsys.readouterr().out
    )
    for method in ("dpo", "kto"):
        assert main(["check", "--method", method, "--task", "good.jsonl"]) == 0
        out = capsys.readouterr().out
        assert "equal answers" not in out and "both wanted" not in out


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"desirable": -1.0}, "desirable is -1.0"),
        ({"undesirable": float("nan")}, "undesirable is nan"),
        ({"desirable": 0.0, "undesirable": 0.0}, "no answer teaches"),
    ],
)
def test_weights_of_answers_that_teach_nothing_or_the_reverse_are_refused(weights: dict, words: str) -> None:
    with pytest.raises(gw.Usage, match=words):
        gw.load_method("kto", **weights)
    assert gw.load_method("kto", desirable=0.0).objective.surrogate.desirable == 0


@pytest.mark.parametrize("name", ["dpo", "ipo", "simpo", "orpo", "kto"])
@pytest.mark.parametrize("beta", ["0", "-1", "nan", "inf"])
def test_a_beta_that_teaches_nothing_or_the_reverse_is_refused(name: str, beta: str) -> None:
    with pytest.raises(gw.Usage, match=f"beta is {float(beta)}") as caught:
        gw.load_method(name, beta=float(beta))
    _, (problem,) = read_with_problems(f"method = {{ base = '{name}', beta = {beta} }}", [], UserCode())
    assert caught.value.fix == problem.fix == "use a number above 0, such as 0.1"
