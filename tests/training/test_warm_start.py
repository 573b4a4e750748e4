"""Tests of the supervised phase: loss, order, files, and unusable demonstrations."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groupwise.__main__ import main
from groupwise.config.recipe import WarmStart
from groupwise.config.user_code import UserCode
from groupwise.core import BadData
from groupwise.data import ENVIRONMENT, TEMPLATE, WRITTEN, Draw, Prompt
from groupwise.learner import AdamW, Learner
from groupwise.models import (
    PrefixPacking,
    Tokenizer,
    conversation_turn,
    encode_answer,
    find_model,
    find_template,
    read_model,
    read_tokenizer,
)
from groupwise.runs.run_layout import RunLayout
from groupwise.tasks import Demonstration, demonstrations, read_demonstrations
from groupwise.tasks.big_sums import sum_demonstrations
from groupwise.training.build_run import RunObjects, build
from groupwise.training.progress_output import ProgressPrinter
from groupwise.training.warm_start import supervised_steps, warm_start
from tests.commands.test_bad_input import SMALL, error_of, rows
from tests.faults.small_runs import EVERY, begun, ran, run_from
from tests.learner.small import model
from tests.models.directories import bytes_, characters
from tests.models.test_templates import trained
from tests.rollout.fakes import sampling
from tests.rollout.test_turns import Replies, rollout, sampler

pytestmark = pytest.mark.usefixtures("home")

SHOWN = [Demonstration((1, 2, 3), (4, 5, 0)), Demonstration((6, 2), (7, 0)), Demonstration((1, 2, 3), (9, 9, 9, 9, 0))]


def file(n: int = 24) -> str:
    """Demonstrations of the calculator, all with their steps."""
    return rows("shown.jsonl", *({"prompt": p, "answer": a} for p, a in demonstrations(3, n, 1.0)))


def phase(n: int = 24, **settings: object) -> WarmStart:
    return WarmStart(**{"demonstrations": file(n), "per_step": 4, "optimizer": AdamW(lr=3e-4)} | settings)


def learner(steps: int, dtype: torch.dtype = torch.float64) -> Learner:
    return Learner(model(dtype), optimizer=AdamW(lr=1e-2), steps=steps)


def test_the_loss_is_the_mean_negative_log_prob_of_answer_tokens() -> None:
    it, plain = learner(1), model()
    (taken,) = supervised_steps(it, SHOWN, per_step=3, order=range_of, microbatch_tokens=9)
    losses_per_token = []
    for d in SHOWN:
        for k, token in enumerate(d.answer_ids):
            layout = PrefixPacking.of([d.prompt_ids + d.answer_ids[:k]], [(token,)])
            logits = plain.head(plain(layout.tokens, layout))[-1]
            losses_per_token.append(-torch.log_softmax(logits.detach(), 0)[token])
    assert len(losses_per_token) == 10 == taken.batch.tokens
    assert taken.loss == pytest.approx(float(torch.stack(losses_per_token).mean()), abs=1e-12)


def test_only_the_assistant_s_tokens_of_a_conversation_are_trained() -> None:
    """Each token's context includes the tokens of the environment."""
    origin = (WRITTEN, WRITTEN, TEMPLATE, ENVIRONMENT, ENVIRONMENT, WRITTEN, WRITTEN)
    shown, it, plain = Demonstration((1, 2), (4, 0, 8, 7, 6, 5, 0), origin), learner(1), model()
    (taken,) = supervised_steps(it, [shown], per_step=1, order=lambda epoch: range(1), microbatch_tokens=99)
    layout = PrefixPacking.of([shown.prompt_ids], [shown.answer_ids])
    logprobs = torch.log_softmax(plain.head(plain(layout.tokens, layout))[layout.predicting_indices].detach(), -1)
    losses_per_token = [-logprobs[i, token] for i, token in enumerate(shown.answer_ids) if origin[i] == WRITTEN]
    assert taken.batch.tokens == len(losses_per_token) == 4
    assert taken.loss == pytest.approx(float(torch.stack(losses_per_token).mean()), abs=1e-12)


def range_of(epoch: int) -> range:
    return range(len(SHOWN))


def test_every_epoch_has_each_demonstration_once() -> None:
    requests: list[int] = []

    def order(epoch: int) -> list[int]:
        requests.append(epoch)
        return [(i + epoch) % 3 for i in range(3)]

    taken = list(supervised_steps(learner(3), SHOWN, per_step=2, order=order, microbatch_tokens=99))
    dealt = [sample.tokens for t in taken for sample in t.batch.samples]
    assert [d.answer_ids for d in SHOWN] == dealt[:3]
    assert [SHOWN[i].answer_ids for i in (1, 2, 0)] == dealt[3:]
    assert Counter(requests) == {0: 2, 1: 2}


def test_a_run_starts_from_the_weights_of_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = replace(EVERY, warm_start=phase(12, steps=6), iterations=1)
    run = ran(Path("run"), recipe)
    metrics = [json.loads(line) for line in (run / "warm_start" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    tokens = [line["num_tokens"] for line in metrics]
    assert metrics[-1]["loss"] < metrics[0]["loss"] and min(tokens) > 20
    assert sum(tokens[:3]) == sum(tokens[3:]) and tokens[:3] != tokens[3:]  # two epochs, each in an order of its own
    assert not list((run / "warm_start").glob("checkpoints/*/*"))
    assert f"6 steps, loss {metrics[0]['loss']:.3f}" in (run / "report.html").read_text()
    assert "warm start 6/6" in capsys.readouterr().err


def test_reference_and_master_weights_are_those_after_the_phase(home: Path) -> None:
    recipe = replace(EVERY, warm_start=phase(steps=3), machine=replace(EVERY.machine, dtype="bfloat16"))
    ready = build(recipe, UserCode())
    before = {name: x.clone() for name, x in ready.model.state_dict().items()}
    assert asyncio.run(warm_start(RunLayout(begun(home / "run", recipe)), ready, lambda: "", print))
    learner = ready.new_learner()
    policy, reference = ready.model.state_dict(), learner.models["reference"].state_dict()
    assert any(not torch.equal(x, before[name]) for name, x in policy.items())
    assert all(torch.equal(x, reference[name]) for name, x in policy.items())
    optimizer = learner.optimizer
    assert all(torch.equal(w, m.to(w.dtype)) for w, m in zip(optimizer.weights, optimizer.masters))


def test_the_learner_of_a_run_is_created_after_the_phase(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, new_learner = [], RunObjects.new_learner

    def created(objects: RunObjects) -> Learner:
        steps.append(len((home / "run" / "warm_start" / "metrics.jsonl").read_text().splitlines()))
        return new_learner(objects)

    monkeypatch.setattr(RunObjects, "new_learner", created)
    ran(home / "run", replace(EVERY, warm_start=phase(steps=3), iterations=1))
    assert steps == [3]


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


def read(path: str, tokenizer: Tokenizer | None = None) -> list[Demonstration]:
    it = tokenizer or characters()
    ask, tell = find_template("no", it), partial(conversation_turn, it, ((), ()))
    return read_demonstrations(
        path, ask, partial(encode_answer, it), prompt="prompt", answer="answer", encode_reply=tell
    )[0]


def test_an_answer_ends_with_the_tokenizer_s_end_token() -> None:
    it = characters()
    shown = read(rows("a.jsonl", {"prompt": "1+1=", "answer": "2"}))
    assert shown == [Demonstration(it.encode("1+1="), (*it.encode("2"), 0))]
    two = bytes_()
    assert two.eos_ids == {0, 1} and encode_answer(two, "a")[-1] == 0
    config = json.dumps({"eos_token": {"content": "<|im_end|>"}}).encode()
    named = replace(two, extra_files=(("tokenizer_config.json", config),))
    assert encode_answer(named, "a")[-1] == named.backend_tokenizer.token_to_id("<|im_end|>") == 1
    assert encode_answer(named, "<|im_end|>")[:-1] != (1,)  # inside an answer it is ten characters


def test_the_prompt_of_a_conversation_ends_before_its_last_answer() -> None:
    turns = (("user", "1+1="), ("assistant", "2"), ("user", "3"))
    talk = [{"role": role, "content": content} for role, content in turns]
    last = {"role": "assistant", "content": "4"}
    contexts: list[object] = []

    def ask(messages: object) -> tuple[int, ...]:
        contexts.append(messages)
        return (1,)

    path = rows("a.jsonl", {"messages": [*talk, last]})
    demonstrations, stats = read_demonstrations(path, ask, characters().encode, prompt="prompt", answer="answer")
    assert contexts == [talk] and demonstrations[0].answer_ids == characters().encode("4") and stats.row_count == 1


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
    tell = partial(conversation_turn, reader, template.turn_frame())
    path, columns = rows("a.jsonl", messages(*TURNS)), {"prompt": "prompt", "answer": "answer"}
    (shown,), _ = read_demonstrations(path, template, partial(encode_answer, reader), encode_reply=tell, **columns)
    assert (shown.prompt_ids, shown.answer_ids) == (had.context, had.tokens)
    assert shown.token_origins == tuple(WRITTEN if o >= 0 else o for o in had.origin)


def test_a_tool_message_may_open_a_conversation() -> None:
    it = characters()
    talk = [("user", "1+1="), ("tool", "9"), ("assistant", "2")]
    path, columns = rows("a.jsonl", messages(*talk)), {"prompt": "prompt", "answer": "answer"}
    tell = partial(conversation_turn, it, ((7,), (8,)))
    (shown,), _ = read_demonstrations(path, lambda _: (1,), partial(encode_answer, it), encode_reply=tell, **columns)
    assert shown.answer_ids == (*it.encode("92"), 0) and shown.token_origins == (ENVIRONMENT, WRITTEN, WRITTEN)


def test_tool_messages_need_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    path = rows("a.jsonl", messages(("user", "1+1="), ("assistant", "1+1="), ("tool", "2"), ("assistant", "#2")))
    words = ["--warm_start.demonstrations", path, "--warm_start.steps", "1", *SMALL]
    output = error_of(capsys, 2, "train", *words)
    assert "the demonstrations contain tool messages" in output and "--environment" in output


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"question": "1", "answer": "2"}, "it has question, answer: say --warm_start.columns.prompt question"),
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
        (messages(("user", "1"), ("assistant", "2"), ("tool", "é"), ("assistant", "4")), "read this tool's answer"),
        ({"prompt": "1", "answer": "2é"}, "the tokenizer cannot read this answer"),
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


def test_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.jsonl").write_text("")
    shown, long = file(2), rows("long.jsonl", {"prompt": "7*5=", "answer": "1" * 200})
    for words, code, what, fix in (
        (["--warm_start.demonstrations", "nowhere.jsonl"], 3, "there is no file nowhere.jsonl", "shown.jsonl"),
        (["--warm_start.demonstrations", "empty.jsonl"], 3, "empty.jsonl holds no demonstration", '{"prompt"'),
        (["--warm_start.demonstrations", long], 3, "takes at most 128 tokens", "drop long prompts"),
        (["--warm_start.demonstrations", shown, "--warm_start.steps", "0"], 2, "steps is 0", "at least 1"),
        (["--warm_start.demonstrations", shown, "--warm_start.per_step", "0"], 2, "per_step is 0", "at least 1"),
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


def test_enough_steps_memorise_the_demonstrations() -> None:
    """With enough steps the loss on a small file goes to 0."""
    home = find_model("calculator")
    tokenizer, decoder = read_tokenizer(home), read_model(home)
    shown = read(rows("a.jsonl", *({"prompt": p, "answer": "#1"} for p in ("2+3=", "4*5="))), tokenizer)
    it = Learner(decoder, optimizer=AdamW(lr=3e-3), steps=30)
    losses = [
        t.loss for t in supervised_steps(it, shown, per_step=2, order=lambda epoch: range(2), microbatch_tokens=999)
    ]
    assert losses[0] > 1 and losses[-1] < 0.05


def test_the_tool_recipe_trains_only_the_model_s_tokens(home: Path) -> None:
    """A few steps of `recipes/big_sums.toml`: an environment's token has no log-prob and no advantage."""
    recipe = Path(__file__).parents[2] / "recipes" / "big_sums.toml"
    calls = rows("calls.jsonl", *(row for row in islice(sum_demonstrations(), 100) if len(row["messages"]) > 2))
    few = ["--iterations", "1", "--prompts", "4", "--method.group_size", "4", "--evaluate.problems", "4"]
    few += ["--warm_start.steps", "30", "--warm_start.per_step", "8", "--warm_start.optimizer.warmup_steps", "5"]
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
