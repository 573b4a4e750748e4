"""The defaults of a run for its model, where neither a recipe nor a command sets a field."""

from collections.abc import Callable
from pathlib import Path

import pytest

from groupwise.config.model_dependent_defaults import LEARNING_RATES, complete_phases, learning_rate, starting_point
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.config.toml import DEFAULT, read_toml
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.methods import EarlyStoppingTurns, Method, published, reference_of
from groupwise.models import Decoder, write_model
from groupwise.rollout import Turns
from tests.checks import check
from tests.models.directories import bytes_, shape

DOCS = Path(__file__).parents[2] / "docs"


def recipe_of(*fields: tuple[str, str], source: str | None = None):
    start = starting_point(source, fields)
    return read_recipe(start.source, start.overrides, UserCode()), start.defaults_note


@pytest.mark.parametrize("fields", [(), (("model", "calculator"),), (("task", "calculator"), ("seed", "3"))])
def test_the_packaged_recipe_holds_for_its_own_model_and_task(fields: tuple[tuple[str, str], ...]) -> None:
    start = starting_point(None, fields)
    assert start.source == DEFAULT
    assert start.overrides == fields
    assert not start.defaults_note


@pytest.mark.parametrize("field", [("model", "blank"), ("task", "big_sums")])
def test_another_model_or_task_takes_no_number_of_the_packaged_recipe(field: tuple[str, str]) -> None:
    recipe, note = recipe_of(field)
    packaged = read_recipe(DEFAULT)
    assert recipe.method == next(m for m in published if m.__name__ == "gspo")()
    assert recipe.sampling.max_tokens == (128 if "blank" in field else 64) != packaged.sampling.max_tokens
    assert note.startswith("defaults: method gspo, optimizer.lr 0.0002")


def test_given_fields_stay() -> None:
    fields = [("task", "big_sums"), ("method", "rloo"), ("optimizer.lr", "0.5"), ("sampling.max_tokens", "9")]
    recipe, note = recipe_of(*fields)
    assert (recipe.optimizer.lr, recipe.sampling.max_tokens, recipe.method.group_size, note) == (0.5, 9, 4, "")


def test_an_adapter_learns_faster() -> None:
    assert recipe_of(("task", "big_sums"), ("lora.rank", "2"))[0].optimizer.lr == pytest.approx(2e-3)
    assert recipe_of(("task", "big_sums"), ("lora", "none"))[0].optimizer.lr == pytest.approx(2e-4)


PARTS = {"refine": "confidence"}
"""Methods that need a subscore which the verifier of no packaged task gives."""


@pytest.mark.parametrize("method", published, ids=lambda method: method.__name__)
def test_a_method_alone_is_a_recipe_that_runs(method: Callable[..., Method], tmp_path: Path) -> None:
    """On the packaged task, or on the task of its effect.

    A method of several turns needs an environment, one that reads a subscore a verifier that gives it, and one of
    stored answers rows that have them.
    """
    file = tmp_path / "r.toml"
    effect = reference_of(method).expected_effect
    task = read_recipe(find_recipe(effect.task)) if effect and effect.task != "calculator" else read_recipe(DEFAULT)
    file.write_text(f'method = "{method.__name__}"\ntask = "{task.task.label}"\nmodel = "{task.model}"\n')
    errors = check(file, [("evaluate.problems", "1")])
    if isinstance(method().strategy, Turns | EarlyStoppingTurns):
        assert ["needs an environment" in error.what and bool(error.fix) for error in errors] == [True]
    elif getattr(method().strategy, "writes_stored_answers", False):
        assert ["needs the column" in error.what and bool(error.fix) for error in errors] == [True]
    elif part := PARTS.get(method.__name__):
        assert [f"needs the subscore '{part}'" in error.what for error in errors] == [True]
    else:
        assert errors == []
    assert read_recipe(file).optimizer.lr == 1e-6  # a file without a learning rate has that of the papers


def test_a_missing_model_is_an_error_of_the_check_alone() -> None:
    start = starting_point(None, [("model", "no-such-model")])
    assert start.overrides == (("model", "no-such-model"),)
    assert any("no model at" in str(error) for error in check(None, [("model", "no-such-model")]))


def test_the_method_has_one_spelling_on_the_command_line() -> None:
    with pytest.raises(Usage, match="would keep constants") as error:
        read_recipe(DEFAULT, [("method.base", "grpo")])
    assert error.value.fix == "write --method grpo"
    for fields in ([("method", "grpo"), ("method.group_size", "8")], [("method.group_size", "8"), ("method", "grpo")]):
        method = read_recipe(DEFAULT, fields).method
        assert (method.group_size, method.objective.surrogate.low) == (8, 0.2)


def test_the_documented_table_is_that_of_the_code() -> None:
    page = (DOCS / "runs.md").read_text("utf-8")
    rows = {"under 10 million": 9_999_999, "under 1 billion": 10_000_000, "more": 1_000_000_000}
    assert len(rows) == len(LEARNING_RATES)
    for words, weights in rows.items():
        rates = (learning_rate(weights, adapter=adapter) for adapter in (False, True))
        assert f"| {words} | {' | '.join(map(str, rates))} |" in page


def test_answers_on_a_cpu_are_short_unless_a_recipe_or_the_user_says_more(tmp_path: Path) -> None:
    """128 answers of 1,024 tokens take hours on a CPU. An evaluation, a recipe file and a GPU keep the usual budget."""
    write_model(Decoder.new(shape(vocabulary_size=300, max_positions=4096), 1), tmp_path / "long", tokenizer=bytes_())
    model = ("model", str(tmp_path / "long"))
    (tmp_path / "r.toml").write_text('method = "gspo"')

    def budget(*fields: tuple[str, str], source: str | None = None, train: bool = True) -> int:
        start = starting_point(source, [model, ("machine.device", "cpu"), *fields], train=train)
        return read_recipe(start.source, start.overrides, UserCode()).sampling.max_tokens

    assert budget() == 128 and budget(("machine", '{ device = "cpu" }')) == 128
    assert (
        "sampling.max_tokens 128 (on a CPU)" in starting_point(None, [model, ("machine.device", "cpu")]).defaults_note
    )
    assert budget(train=False) == budget(source=str(tmp_path / "r.toml")) == budget(("machine.device", "cuda")) == 1024
    assert budget(("sampling.max_tokens", "700")) == 700


PHASES = """
method = "gspo"
evaluate.problems = 2
[[phase]]
name = "first"
[[phase]]
name = "second"
sampling.max_tokens = 9
machine.dtype = "float64"
[[phase]]
name = "third"
machine.device = "cpu"
"""


def test_phases_are_completed_as_a_recipe_is() -> None:
    data, notes = complete_phases(read_toml(PHASES))
    first, second, third = data["phase"]
    assert first == {"name": "first", "sampling": {"max_tokens": 64}, "machine": {"dtype": "float32"}}
    assert second["sampling"] == {"max_tokens": 9} and second["machine"] == {"dtype": "float64"}
    assert third["sampling"] == {"max_tokens": 64} and third["machine"] == {"device": "cpu", "dtype": "float32"}
    budget = "sampling.max_tokens 64 (half of the model's 128)"
    assert notes == [f"defaults of phase {name}: {budget}" for name in ("first", "third")]
    assert complete_phases(data) == (data, [])  # as the run that recorded it reads it again
    assert read_toml(PHASES)["phase"][0] == {"name": "first"}


def test_fields_above_the_phases_are_given(tmp_path: Path) -> None:
    data, notes = complete_phases(read_toml("sampling.max_tokens = 10\nmachine.dtype = 'bfloat16'" + PHASES))
    assert data["phase"][0] == {"name": "first"} and not notes


def test_the_check_of_phases_takes_their_defaults(tmp_path: Path) -> None:
    file, lines = tmp_path / "phases.toml", list[str]()
    file.write_text(PHASES)
    assert check(file, notify=lines.append) == []  # without the defaults, 1024 tokens do not fit the model
    assert lines[0] == "defaults of phase first: sampling.max_tokens 64 (half of the model's 128)"
