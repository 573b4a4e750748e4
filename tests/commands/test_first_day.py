"""Mistakes of a first day: each is refused before anything is loaded, with a fix that names the right thing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from groupwise.__main__ import main
from groupwise.config.other_names import METHOD_HINTS, OTHER_NAMES
from groupwise.config.text import read_with_problems
from groupwise.config.user_code import Use
from groupwise.data import Usage
from groupwise.tasks.registry import CONVERSIONS, find_task
from groupwise.training.check import check

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"


def refusals(*fields: tuple[str, str]) -> str:
    return "\n".join(map(str, check(None, fields)))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("machine.device", "tpu", "use cpu or cuda"),
        ("machine.device", "cuda:99", "machine has no"),
        ("sinks", '["wandb"]', "pip install 'groupwise[wandb]'"),
        ("sinks", '["nope"]', "the sinks are"),
        ("engine.cache_tokens", "1", "use --engine.cache_tokens "),
        ("lora.rank", "100000", "use a rank below 96"),
    ],
)
def test_check_refuses_what_train_refuses(field: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("groupwise.training.check.find_spec", lambda name: None)
    assert words in refusals((field, value))


def test_more_threads_than_cores_are_a_warning() -> None:
    notes: list[str] = []
    assert check(None, [("machine.threads", "5000")], warn=notes.append) == []
    assert any("machine.threads is 5000" in note for note in notes)


def test_check_takes_a_command_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--iterations", "3"]) == 0
    assert capsys.readouterr().out.endswith("recipe: ok\n")
    assert main(["check", "--recipe", "calculator"]) == 0
    assert main(["show", "calculator"]) == 0
    assert 'model = "calculator"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", ""], "leave the argument out"),
        (["check", ""], "leave the argument out"),
        (["train", "grpo"], "groupwise train --method grpo"),
        (["check", "a.toml", "--recipe", "smollm2"], "leave one out"),
        (["train", "--method", "ppo"], "docs/learner.md has a recipe with a critic"),
        (["train", "--learning_rate", "1e-5"], "write optimizer.lr"),
        (["train", "--num_generations", "8"], "write method.group_size"),
    ],
)
def test_a_mistake_has_its_fix(words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert fix in capsys.readouterr().err


def test_an_option_without_a_value_does_not_take_the_next_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--lora", "--task", "problems.jsonl"])
    assert "--lora needs a value" in capsys.readouterr().err


def test_names_of_other_libraries_are_those_of_the_page() -> None:
    page = PAGE.read_text("utf-8")
    for name, field in OTHER_NAMES.items():
        rows = [line for line in page.splitlines() if f"{name}`" in line]
        assert any(f"`{field}" in line for line in rows), name
        _, problems = read_with_problems(f"method = 'grpo'\n{name} = 1", [], Use())
        assert f"write {field}" in str(problems[0])
    assert all("docs/learner.md" in hint for hint in METHOD_HINTS.values())


@pytest.mark.parametrize(
    "text", ["prompts = 'four'", "method.group_size = 0", "metod = 'x'", "sampling = 3", "seed = -1"]
)
def test_every_refusal_of_a_recipe_has_a_fix(text: str) -> None:
    _, problems = read_with_problems(text if "method" in text else f"method = 'grpo'\n{text}", [], Use())
    assert problems and all(problem.fix for problem in problems)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "prompt,answer\nx,1\n"),
        ("a.json", '[{"prompt": "x", "answer": "1"}]'),
        ("a.txt", "x\n"),
    ],
)
def test_a_file_of_another_format_comes_with_the_command_that_converts_it(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(Usage) as error:
        find_task(str(tmp_path / name), lambda text: (1,))
    command = error.value.fix.split("\n")[1]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, cwd=tmp_path, check=True)
    assert json.loads((tmp_path / "a.jsonl").read_text())["prompt"] == "x"
    assert Path(name).suffix in CONVERSIONS
