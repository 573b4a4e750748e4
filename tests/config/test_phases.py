"""The phases of a recipe as text: overrides, starting points, references, names."""

from typing import Any

import pytest

from groupwise.config.phase_recipes import Phase, read_phases
from groupwise.config.recipe import Recipe
from groupwise.config.toml import read_toml
from groupwise.config.user_code import UserCode
from groupwise.core import Usage
from groupwise.learner import FromDirectory
from groupwise.tasks import DataRows, PublishedSet

TWO = """
model = "calculator"
prompts = 4
lora.rank = 2
sampling.stop = ["@search/model"]

[warm_start]
demonstrations = "shown.jsonl"

[method]
base = "gspo"
group_size = 4

[[phase]]
name = "search"
iterations = 5

[[phase]]
name = "sharpen"
method.group_size = 8
task = { kind = "gsm8k", source = "@search/data" }
"""


def phases(text: str) -> tuple[Phase, ...]:
    return read_phases(read_toml(text))


def recipes(text: str) -> list[Recipe]:
    read = []
    for phase in phases(text):
        recipe, problems = phase.recipe(lambda name, path: f"run/{name}/{path}", UserCode())
        assert recipe is not None and not problems
        read.append(recipe)
    return read


def problem(text: str) -> str:
    """The only problem of the last phase."""
    (error,) = phases(text)[-1].recipe(lambda name, path: f"run/{name}/{path}", UserCode())[1]
    return str(error)


def test_a_phase_overrides_the_recipe_above_it() -> None:
    search, sharpen = recipes(TWO)
    assert (search.iterations, sharpen.iterations) == (5, 100)
    assert (search.method.group_size, sharpen.method.group_size) == (4, 8)
    assert search.method.objective == sharpen.method.objective
    assert sharpen.prompts == 4


def test_a_table_with_a_base_replaces_the_method() -> None:
    changed = TWO.replace("method.group_size = 8", 'method = { base = "grpo" }')
    assert recipes(changed)[1].method.group_size == 64
    assert [phase.base for phase in phases(changed)] == ["gspo", "grpo"]


def test_a_later_phase_starts_from_the_previous_model_alone() -> None:
    search, sharpen = recipes(TWO)
    assert search.model == "calculator" and search.lora and search.warm_start
    assert sharpen.model == "run/search/model" and sharpen.lora is None and sharpen.warm_start is None
    other = recipes(TWO.replace("method.group_size = 8", 'model = "blank"\nlora.rank = 4'))[1]
    assert other.model == "blank" and other.lora and other.lora.rank == 4
    assert [phase.starts_from for phase in phases(TWO)] == ["", "search"]


def test_a_reference_is_the_directory_of_an_earlier_phase() -> None:
    given = TWO + 'method.models.reference = { kind = "FromDirectory", directory = "@search/model" }\n'
    sharpen = recipes(given)[1]
    assert dict(sharpen.method.models) == {"reference": FromDirectory("run/search/model")}
    assert sharpen.task == PublishedSet("gsm8k", "run/search/data")


def test_text_has_no_references() -> None:
    assert recipes(TWO)[1].sampling.stop == ("@search/model",)
    assert recipes(TWO + 'template = "@search {prompt}"')[1].template == "@search {prompt}"
    assert recipes(TWO + 'held_out = "datasets:openai/gsm8k:main@test"')[1].held_out == DataRows(
        "datasets:openai/gsm8k:main@test"
    )


@pytest.mark.parametrize(("name", "earlier"), [("serch", "search"), ("sharpen", "search"), ("later", "search")])
def test_a_reference_to_no_earlier_phase_is_refused(name: str, earlier: str) -> None:
    text = TWO.replace("@search/data", f"@{name}/data")
    message = problem(text)
    assert f"phase.sharpen.task.source: no earlier phase is called '{name}'" in message
    assert f"the earlier phases are {earlier}" in message
    assert "this is the first phase" in problem('method = "gspo"\n[[phase]]\nname = "a"\nmodel = "@a/model"')


def test_problems_name_the_phase() -> None:
    assert "phase.sharpen: Recipe has no field 'promts'; did you mean prompts?" in problem(TWO + "promts = 3")
    assert "phase.sharpen.prompts: 'many' is a string" in problem(TWO + 'prompts = "many"')


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "search"}, "expected one table per phase"),
        ([], "expected one table per phase"),
        ([{}], "phase.0 has no name"),
        ([{"name": "../x"}], "'../x' is not a name for a phase"),
        ([{"name": 3}, {"name": "3"}], "two phases are called '3'"),
    ],
)
def test_invalid_names_are_refused(data: Any, message: str) -> None:
    with pytest.raises(Usage, match=message):
        read_phases({"phase": data})
