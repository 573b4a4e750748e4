"""`chat`: conversations through the chat template, single prompts without one; and a single answer is greedy."""

import asyncio
import io
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import groupwise as gw
from groupwise.__main__ import main
from groupwise.commands.chat import talk, usual_template
from groupwise.core import Usage
from groupwise.data import Sample
from groupwise.models import find_model

PROMPT = "7*5+8-9+3="


@dataclass
class Echo:
    """A model that repeats the last line, and fails for the line `long`."""

    prompts: list[Any] = field(default_factory=list)

    async def answers(self, prompt: Any) -> tuple[Sample, ...]:
        self.prompts.append([dict(m) for m in prompt] if isinstance(prompt, list) else prompt)
        line = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if line == "long":
            raise Usage("the prompt is too long", fix="write less")
        return (Sample(context=(), stream=(0,), text=f"\x1b[31m{line}"),)


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_chat_template_keeps_the_conversation(monkeypatch, capsys):
    model = Echo()
    say(monkeypatch, "one", "", "long", "two")
    with asyncio.Runner() as runner:
        talk(runner, model.answers, conversation=True)
    one = [{"role": "user", "content": "one"}]
    both = [*one, {"role": "assistant", "content": "\x1b[31mone"}]
    assert model.prompts == [
        one,
        [*both, {"role": "user", "content": "long"}],
        [*both, {"role": "user", "content": "two"}],
    ]
    out, err = capsys.readouterr()
    assert out == "\\x1b[31mone\n\\x1b[31mtwo\n"  # visible: no colour reaches the terminal
    assert "the prompt is too long" in err and "write less" in err


def test_a_plain_template_answers_each_line_by_itself(monkeypatch):
    model = Echo()
    say(monkeypatch, "one", "two")
    with asyncio.Runner() as runner:
        talk(runner, model.answers, conversation=False)
    assert model.prompts == ["one", "two"]


def test_the_command_answers_greedily_as_sample_does(monkeypatch, capsys):
    say(monkeypatch, PROMPT, PROMPT)
    assert main(["chat", "calculator"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert main(["sample", "calculator", PROMPT]) == 0
    assert capsys.readouterr().out.strip() == first == second == gw.sample("calculator", PROMPT)
    assert main(["sample", "calculator", PROMPT, "--sampling.temperature", "1.0", "--seed", "3"]) == 0
    drawn = capsys.readouterr().out.strip()
    assert main(["sample", "calculator", PROMPT, "--seed", "4", "--sampling.temperature", "1.0"]) == 0
    assert {drawn, capsys.readouterr().out.strip()} != {first}


def test_a_model_with_a_chat_template_chats_with_it(tmp_path: Path):
    model = tmp_path / "model"
    shutil.copytree(find_model("calculator"), model)
    assert usual_template("calculator", []) == usual_template(str(model), []) == []
    config = model / "tokenizer_config.json"
    settings = json.loads(config.read_text()) if config.is_file() else {}
    config.write_text(json.dumps(settings | {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}))
    assert usual_template(str(model), []) == [("template", "chat")]
    assert usual_template(str(model), [("template", "no")]) == []
