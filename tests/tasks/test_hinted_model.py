"""The packaged model of the task `hinted_sums`: its shape, and what help does to its answers."""

import re
import tomllib
from pathlib import Path

import groupwise as gw
from groupwise.models import find_model, read_shape
from groupwise.tasks import PROMPT_FORMS, calculator_tokenizer, named_task

HOME = Path(__file__).parents[2]
MODEL = find_model("hinted_sums")
TASK = named_task("hinted_sums").build(lambda text: tuple(map(ord, text)))


def test_its_files_are_those_that_the_command_writes() -> None:
    settings = tomllib.loads((HOME / "tools" / "hinted_sums_model.toml").read_text())
    shape = read_shape(MODEL)
    names = ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "mlp_width", "max_positions")
    assert [getattr(shape, name) for name in names] == [settings[name] for name in names]
    assert (MODEL / "tokenizer.json").read_text() == (find_model("calculator") / "tokenizer.json").read_text()
    assert shape.vocabulary_size == calculator_tokenizer().get_vocab_size()
    assert (MODEL / "model.safetensors").stat().st_size < 500_000


def test_the_wheel_contains_its_weights() -> None:
    """Everything in the package's directory is in the wheel, unless a pattern excludes it."""
    wheel = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/groupwise"] and not {"exclude", "only-include"} & wheel.keys()
    assert MODEL.is_relative_to(HOME / "src" / "groupwise")
    assert not [line for line in (HOME / ".gitignore").read_text().split() if "models" in line or "tensors" in line]


def test_it_guesses_alone_and_writes_the_whole_solution_behind_a_hint() -> None:
    for prompt in TASK.held_out[:2]:
        hint = prompt.row["hints"][-1]
        assert re.fullmatch(r"#\d+", gw.sample("hinted_sums", PROMPT_FORMS["plain"].format(prompt=prompt.text)))
        answer = gw.sample("hinted_sums", PROMPT_FORMS["hinted"].format(prompt=prompt.text, hint=hint))
        assert answer == prompt.row["solution"]
