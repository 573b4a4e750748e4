"""Tests of the warm start, a phase of the method sft: order, files, and unusable demonstrations."""

import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groupwise.__main__ import main
from groupwise.checks import check_stored_answers
from groupwise.config.recipe import Recipe, WarmStart
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.user_code import UserCode
from groupwise.core import BadData
from groupwise.data import ENVIRONMENT, WRITTEN, Draw, Prompt, all_problems
from groupwise.learner import AdamW, Learner, Ranks
from groupwise.methods import sft
from groupwise.models import Tokenizer, encode_answer, find_model, find_template, read_tokenizer
from groupwise.tasks import Demonstrations, demonstrations
from groupwise.tasks.big_sums import sum_demonstrations
from groupwise.training.build_environment import tool_schemas
from groupwise.training.build_run import RunInputs, RunObjects, build
from groupwise.training.build_tasks import demonstrations_of, templates
from groupwise.training.progress_output import ProgressPrinter
from groupwise.training.warm_start import warm_start_phase
from groupwise.verifiers.no_verifier import NoVerifier
from tests.commands.test_bad_input import SMALL, error_of, rows
from tests.faults.small_runs import EVERY, begun, ran, run_from
from tests.models.directories import bytes_, characters
from tests.models.test_templates import trained
from tests.rollout.fakes import sampling, stored
from tests.rollout.test_turns import Replies, rollout, sampler

pytestmark = pytest.mark.usefixtures("home")


def file(n: int = 24) -> str:
    """Demonstrations of the calculator, all with their steps."""
    return rows("shown.jsonl", *({"prompt": p, "answer": a} for p, a in demonstrations(3, n, 1.0)))


def phase(n: int = 24, **settings: object) -> WarmStart:
    return WarmStart(**{"demonstrations": file(n), "prompts": 4, "optimizer": AdamW(lr=3e-4)} | settings)


def losses(run: Path) -> list[dict[str, float]]:
    """The metrics of a run's warm start."""
    return [json.loads(line) for line in (run / "warm_start" / "metrics.jsonl").read_text().splitlines()]


def test_a_run_starts_from_the_weights_of_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = replace(EVERY, warm_start=phase(12, steps=6), iterations=1)
    run = ran(Path("run"), recipe)
    before, *metrics = losses(run)
    assert before == {"iteration": 0, "step": 0}, "no row is held out"
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert {line["learning_rate"] for line in metrics} == {3e-4}, "the rate of the run falls"
    tokens = [line["num_tokens"] for line in metrics]
    assert metrics[-1]["loss"] < metrics[0]["loss"] and min(tokens) > 20
    assert sum(tokens[:3]) == sum(tokens[3:]) and tokens[:3] != tokens[3:]  # two epochs, each in an order of its own
    assert not list((run / "warm_start").glob("checkpoints/*/*")) and not (run / "warm_start" / "samples").exists()
    assert f"6 steps, loss {metrics[0]['loss']:.3f}" in (run / "report.html").read_text()
    assert "warm start 6/6" in capsys.readouterr().err


def test_a_warm_start_is_the_run_of_a_phase(home: Path) -> None:
    """Its recipe, trained as a run of its own, ends with the weights that the warm start ends with."""
    whole = ran(home / "whole", replace(EVERY, warm_start=phase(12, steps=5), iterations=0))
    recipe = read_recipe((whole / "warm_start" / "recipe.toml").read_text())
    assert recipe.method == sft() and recipe.task == Demonstrations("shown.jsonl") and recipe.iterations == 5
    alone = ran(home / "alone", recipe)
    assert (alone / "model" / "model.safetensors").read_bytes() == (whole / "model" / "model.safetensors").read_bytes()
    assert (alone / "metrics.jsonl").read_bytes() == (whole / "warm_start" / "metrics.jsonl").read_bytes()


def test_reference_and_master_weights_are_those_after_the_phase(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(EVERY, warm_start=phase(steps=3), machine=replace(EVERY.machine, dtype="bfloat16"), iterations=0)
    first = build(recipe, UserCode()).model.state_dict()
    created, new_learner, steps = [], RunObjects.new_learner, []

    def recorded(objects: RunObjects, ranks: Ranks | None = None) -> Learner:
        learner = new_learner(objects, ranks)
        if objects.recipe.warm_start:
            created.append(learner)
            steps.append(len(losses(home / "run")))
        return learner

    monkeypatch.setattr(RunObjects, "new_learner", recorded)
    ran(home / "run", recipe)
    (learner,) = created
    assert steps == [4], "it is created after the phase"
    policy, reference = learner.model.state_dict(), learner.models["reference"].state_dict()
    assert any(not torch.equal(x, first[name]) for name, x in policy.items())
    assert all(torch.equal(x, reference[name]) for name, x in policy.items())
    optimizer = learner.optimizer
    assert all(torch.equal(w, m.to(w.dtype)) for w, m in zip(optimizer.weights, optimizer.masters))


def test_a_resume_within_the_phase_gives_the_same_model(home: Path) -> None:
    recipe = replace(EVERY, warm_start=phase(steps=8), iterations=1)
    straight = ran(home / "straight", recipe)
    run = begun(home / "run", recipe)

    def stop_at_two(text: str) -> None:
        if "2/8" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressPrinter, "notify", lambda self, text: stop_at_two(text))
        assert run_from(run, build(recipe, UserCode())).exit_code == 143
    assert not (run / "checkpoints").exists() and list((run / "warm_start" / "checkpoints").glob("00000[2-7]"))
    assert run_from(run, build(recipe, UserCode())).exit_code == 0
    for name in ("metrics.jsonl", "warm_start/metrics.jsonl", "model/model.safetensors"):
        assert (run / name).read_bytes() == (straight / name).read_bytes(), name


def test_the_phase_trains_an_adapter_too() -> None:
    pytest.importorskip("peft")
    words = ["--warm_start.demonstrations", file(), "--warm_start.steps", "3", "--warm_start.optimizer.lr", "0.01"]
    assert main(["train", *SMALL, *words, "--lora.rank", "2"]) == 0
    (run,) = Path("runs").iterdir()
    assert (run / "model" / "adapter_model.safetensors").is_file()
    assert [d["source"] for d in json.loads((run / "run.json").read_text())["data"]] == ["shown.jsonl"]


def read(path: str, tokenizer: Tokenizer | None = None) -> Sequence[Prompt]:
    return Demonstrations(path).build(find_template("no", tokenizer or characters())).training


def test_an_answer_ends_with_the_tokenizer_s_end_token() -> None:
    it = characters()
    (shown,) = read(rows("a.jsonl", {"prompt": "1+1=", "answer": "2"}))
    assert shown.token_ids == it.encode("1+1=") and stored(shown, it).tokens == (*it.encode("2"), 0)
    two = bytes_()
    assert two.eos_ids == {0, 1} and encode_answer(two, "a")[-1] == 0
    config = json.dumps({"eos_token": {"content": "<|im_end|>"}}).encode()
    named = replace(two, extra_files=(("tokenizer_config.json", config),))
    assert encode_answer(named, "a")[-1] == named.backend_tokenizer.token_to_id("<|im_end|>") == 1
    assert encode_answer(named, "<|im_end|>")[:-1] != (1,)  # inside an answer it is ten characters


def test_the_prompt_of_a_conversation_ends_before_its_last_answer() -> None:
    turns = (("user", "1+1="), ("assistant", "2"), ("user", "3"))
    talk = [{"role": role, "content": content} for role, content in turns]
    contexts: list[object] = []

    def ask(messages: object) -> tuple[int, ...]:
        contexts.append(messages)
        return (1,)

    path = rows("a.jsonl", {"messages": [*talk, {"role": "assistant", "content": "4"}]})
    task = Demonstrations(path).build(ask)
    assert contexts == [talk] and task[0].row["completion"] == "4" and task.source_stats[0].row_count == 1


TURNS = [("user", "7*5="), ("assistant", "call"), ("tool", "<|im_end|> see: 3"), ("assistant", "35")]


def messages(*turns: tuple[str, str]) -> dict[str, object]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_a_demonstrated_conversation_has_the_tokens_of_a_generated_one() -> None:
    reader = trained()
    template = find_template("chat", reader)
    replies = iter([words for role, words in TURNS if role == "assistant"])
    s = sampler(
        lambda: Replies(["<|im_end|> see: 3", None]), lambda ask: (*reader.encode(next(replies)), min(reader.eos_ids)),
        draw=Draw(4, Prompt("p", template("7*5=")), 1), tokenizer=reader, sampling=sampling(max_tokens=400),
        observation_frame_ids=template.turn_frame(),
    )  # fmt: skip
    had = rollout(s).samples[0]
    (prompt,) = Demonstrations(rows("a.jsonl", messages(*TURNS))).build(template).training
    shown = stored(prompt, reader, template.turn_frame())
    assert (shown.context, shown.tokens) == (had.context, had.tokens)
    assert shown.origin == tuple(WRITTEN if o >= 0 else o for o in had.origin)


def test_a_tool_message_may_open_a_conversation() -> None:
    it = characters()
    (prompt,) = read(rows("a.jsonl", messages(("user", "1+1="), ("tool", "9"), ("assistant", "2"))))
    shown = stored(prompt, it, ((7,), (8,)))
    assert shown.tokens == (*it.encode("92"), 0) and shown.origin == (ENVIRONMENT, WRITTEN, WRITTEN)


def test_tool_messages_need_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    path = rows("a.jsonl", messages(("user", "1+1="), ("assistant", "1+1="), ("tool", "2"), ("assistant", "#2")))
    words = ["--warm_start.demonstrations", path, "--warm_start.steps", "1", *SMALL]
    output = error_of(capsys, 2, "train", *words)
    assert "the demonstrations contain tool messages" in output and "--environment" in output


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "1", "answer": "2"}, "it has question, answer: say --columns.prompt question"),
        ({"prompt": "1"}, "no field 'answer'"),
        ({"prompt": "1", "answer": 2}, "field 'answer' is a number: a demonstration must be text"),
        ({"prompt": "1", "answer": " "}, "field 'answer' is empty"),
        ({"prompt": "1", "answer": ["2"]}, "field 'answer' is a list"),
        ({"messages": []}, "a list of objects with role and content"),
        ({"messages": "hello"}, "field 'messages' is text"),
        ({"messages": [{"role": "assistant", "content": "2"}]}, "do not end with an answer"),
        ({"messages": [{"role": "user", "content": "2"}] * 2}, "do not end with an answer"),
        (messages(("user", "1"), ("assistant", "2"), ("tool", "3")), "do not end with an answer"),
        (messages(("user", "1"), ("assistant", ""), ("tool", "3"), ("assistant", "4")), "do not end with an answer"),
        (messages(("user", "1"), ("assistant", "2"), ("tool", "3"), ("tool", "3"), ("assistant", "4")), "as one"),
        ({"prompt": "1é", "answer": "2"}, "the tokenizer cannot read this prompt"),
        (None, "row 1: empty"),
    ],
)
def test_unusable_demonstrations_are_an_error(row: object, why: str) -> None:
    if "é" in str(row):
        tokenizer = read_tokenizer(find_model("calculator"))
    else:
        tokenizer = characters()
    with pytest.raises(BadData, match=r"1 of 1 demonstrations cannot be used") as error:
        read(rows("a.jsonl", row), tokenizer)
    assert why in error.value.evidence and "messages" in error.value.fix


def conversations(*messages: object) -> tuple[Recipe, RunInputs]:
    """The packaged recipe with tools, with these demonstrations."""
    source = Path(__file__).parents[2] / "recipes" / "big_sums.toml"
    recipe = read_recipe(source, [("warm_start.demonstrations", rows("rows.jsonl", *messages))])
    tokenizer = read_tokenizer(find_model(recipe.model))
    by_name = templates(recipe, tokenizer, tool_schemas(recipe, UserCode()))
    task = demonstrations_of(recipe, by_name)
    assert task is not None
    return recipe, RunInputs(tokenizer, by_name, task, NoVerifier())


def test_the_longest_demonstration_is_found_without_writing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations with and without tools: few are written as samples, and the length is that of the longest."""
    lengths, written = check_stored_answers.stored_lengths, []

    def count(phase: Recipe, inputs: RunInputs, prompts: Sequence[Prompt]) -> list[tuple[Prompt, int]]:
        written.extend(prompts)
        return lengths(phase, inputs, prompts)

    monkeypatch.setattr(check_stored_answers, "stored_lengths", count)
    few = list(islice(sum_demonstrations(), 60))
    assert len({len(row["messages"]) for row in few}) > 1
    recipe, inputs = conversations(*few)
    longest = check_stored_answers.longest_demonstration(recipe, inputs)
    assert 0 < len(written) < 20
    start = warm_start_phase(recipe)
    assert start is not None
    assert longest == max(len(p.token_ids) + n for p, n in lengths(start, inputs, all_problems(inputs.task)))


def test_the_frames_of_tool_messages_count_for_the_longest_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation with a tool is longer than a plain answer, which has more text."""
    monkeypatch.setattr(check_stored_answers, "frame_of", lambda recipe, templates: ((5,) * 4, (6,) * 4))
    tools = next(row for row in sum_demonstrations() if len(row["messages"]) > 2)
    recipe, inputs = conversations(tools)
    longest = check_stored_answers.longest_demonstration(recipe, inputs)
    (prompt,) = all_problems(inputs.task)
    answer = "1" * (longest - len(prompt.token_ids) - 2)
    plain = {"messages": [tools["messages"][0], {"role": "assistant", "content": answer}]}
    assert check_stored_answers.longest_demonstration(*conversations(tools, plain)) == longest


def test_a_demonstration_that_the_tokenizer_cannot_read_is_named() -> None:
    (row,) = islice(sum_demonstrations(), 1)
    recipe, inputs = conversations(row, {"messages": [*row["messages"][:-1], {"role": "assistant", "content": "é"}]})
    with pytest.raises(BadData, match="1 of 2 rows have a stored answer that cannot be read") as caught:
        check_stored_answers.longest_demonstration(recipe, inputs)
    assert "'é'" in str(caught.value)


def test_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").write_text("")
    shown, long = file(2), rows("long.jsonl", {"prompt": "7*5=", "answer": "1" * 200})
    odd = rows("odd.jsonl", {"prompt": "7*5=", "answer": "2é"})
    for words, code, what, fix in (
        (["--warm_start.demonstrations", "nowhere.jsonl"], 3, "there is no file nowhere.jsonl", "shown.jsonl"),
        (["--warm_start.demonstrations", "empty.jsonl"], 3, "empty.jsonl holds no demonstration", '{"prompt"'),
        (["--warm_start.demonstrations", long], 3, "takes at most 128 tokens", "drop long prompts"),
        (["--warm_start.demonstrations", shown, "--warm_start.steps", "0"], 2, "steps is 0", "at least 1"),
        (["--warm_start.demonstrations", shown, "--warm_start.prompts", "0"], 2, "prompts is 0", "at least 1"),
        (
            ["--warm_start.demonstrations", odd],
            3,
            "1 of 1 rows have a stored answer that cannot be read",
            "correct or remove",
        ),
        (["--warm_start.demonstrations", shown, "--warm_start.per_step", "4"], 2, "per_step", "warm_start.prompts"),
        (["--warm_start.steps", "3"], 2, "WarmStart needs demonstrations", "add demonstrations"),
    ):
        output = error_of(capsys, code, "train", *words)
        assert what in output and fix in output, output


def test_resume_refuses_other_demonstrations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--warm_start.demonstrations", file(), "--warm_start.steps", "1"]) == 0
    (run,) = Path("runs").iterdir()
    file(23)
    assert main(["resume", str(run)]) == 3
    assert "shown.jsonl differs from" in capsys.readouterr().err


def test_enough_steps_memorise_the_demonstrations(home: Path) -> None:
    """With enough steps the loss on a small file goes to 0."""
    path = rows("a.jsonl", *({"prompt": p, "answer": "#1"} for p in ("2+3=", "4*5=")))
    settings = WarmStart(demonstrations=path, steps=30, prompts=2, optimizer=AdamW(lr=3e-3))
    _, first, *_, last = losses(ran(home / "run", replace(EVERY, warm_start=settings, iterations=0)))
    assert first["loss"] > 1 and last["loss"] < 0.05


def test_the_tool_recipe_trains_only_the_model_s_tokens(home: Path) -> None:
    """A few steps of `recipes/big_sums.toml`: an environment's token has no log-prob and no advantage."""
    recipe = Path(__file__).parents[2] / "recipes" / "big_sums.toml"
    calls = rows("calls.jsonl", *(row for row in islice(sum_demonstrations(), 100) if len(row["messages"]) > 2))
    few = ["--iterations", "1", "--prompts", "4", "--method.group_size", "4", "--evaluate.problems", "4"]
    few += ["--warm_start.steps", "30", "--warm_start.prompts", "8", "--warm_start.optimizer.warmup_steps", "5"]
    assert main(["train", str(recipe), "--warm_start.demonstrations", calls, *few]) == 0
    (run,) = (home / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "samples" / "000001.jsonl").read_text().splitlines()]
    numbers = load_file(run / "samples" / "000001.safetensors")
    columns = [numbers[name].split(numbers["lengths"].tolist()) for name in ("tokens", "origin", "logp", "advantage")]
    reader, observations = read_tokenizer(find_model("blank")), ""
    for line, tokens, origin, logp, advantage in zip(lines, *columns, strict=True):
        external = origin == ENVIRONMENT
        observations += (words := reader.decode(tokens[external].tolist()))
        assert words == "".join(re.findall(r"<tool_response>\n.*?\n</tool_response>", line["text"], re.DOTALL))
        assert set(origin.tolist()) <= {ENVIRONMENT, 0}
        assert torch.equal(logp.isnan(), external) and torch.equal(advantage.isnan(), external)
    assert "<tool_response>" in observations
    (metrics,) = [m for m in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if m["iteration"] == 1]
    assert metrics["turns/mean"] > 1 and metrics["counts/calls"] > 0 and "eval/counts/malformed" in metrics
