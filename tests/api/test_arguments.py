"""Arguments of the library become a recipe, rows a file, rewards a verifier's text."""

import json
from pathlib import Path

import pytest

import groupwise as gw
from groupwise.api.arguments import arguments_of
from groupwise.api.reward import reward_of
from groupwise.api.write_rows import rows_in_memory, write_rows
from groupwise.config.model_dependent_defaults import tables_of
from groupwise.config.recipe_toml import read_recipe, write
from groupwise.config.train_keyword_arguments import base_name, fields_of, overrides_of, recipe_source
from groupwise.config.user_code import Permissions
from groupwise.core import BadData, Usage
from groupwise.learner import EMA, InitialPolicy
from groupwise.methods import dapo, dr_grpo, gspo, published
from groupwise.tasks import DataRows
from groupwise.verifiers.reward_argument_of_verifier import table_of

ROWS = [{"prompt": f"{a}+1=", "answer": a + 1} for a in range(4)]


def recipe(**settings):
    return read_recipe("", overrides_of(settings))


def test_values_and_their_toml_forms_give_equal_recipes() -> None:
    values = recipe(method=gspo(group_size=4), optimizer=gw.AdamW(lr=1e-5), lora=gw.Lora(rank=4), seed=3)
    forms = recipe(
        method={"base": "gspo", "group_size": 4}, optimizer={"lr": 1e-5}, lora={"rank": 4}, seed=3
    )  # fmt: skip
    assert values == forms == read_recipe(write(values))
    changed = read_recipe(recipe_source(values), overrides_of({"seed": 4}))
    assert (changed.seed, changed.optimizer.lr) == (4, 1e-5)


def test_text_from_python_is_never_parsed() -> None:
    """On the command line, text in quotation marks is TOML."""
    read = recipe(**{"method": "grpo", "system": '"Be brief."', "verifier": "exact", "sampling.stop": ["\n"]})
    assert (read.system, read.sampling.stop) == ('"Be brief."', ("\n",))
    assert read_recipe('method = "grpo"', [("system", '"Be brief."')]).system == "Be brief."
    with pytest.raises(Usage, match="expected a whole number"):
        recipe(method="grpo", iterations="5")


def test_parts_are_values_also_inside_dicts_and_behind_dotted_paths() -> None:
    models = {"ref": InitialPolicy(), "slow": EMA(decay=0.9)}
    assert recipe(method={"base": "cispo", "models": models}).method.models == tuple(models.items())
    assert recipe(**{"method": dapo(), "method.group_size": 6, "sampling.max_tokens": 20480}).method.group_size == 6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"methd": "grpo"}, "did you mean method"),
        ({"method": 3}, "expected the name of a component"),
        ({"method": "grpo", "iterations": "x"}, "expected a whole number"),
        ({"method": "grpo", "optimizer": {"lrr": 1}}, "did you mean lr"),
        ({}, "needs method"),
        ({"method": gw.Method(credit=lambda advantage, batch: advantage)}, "define it in a file"),
    ],
)
def test_wrong_settings_are_named(settings, words) -> None:
    with pytest.raises(Usage, match=words):
        recipe(**settings)


def test_a_method_is_the_published_one_whose_numbers_alone_it_changes() -> None:
    assert [base_name(method()) for method in published] == [method.__name__ for method in published]
    assert base_name(gspo(group_size=3, low=0.1)) == "gspo"
    assert base_name(gw.Method()) == ""


def test_of_two_methods_of_one_shape_the_equal_one_is_the_base(monkeypatch) -> None:
    two = {"first": lambda: gspo(low=0.1), "second": gspo}
    monkeypatch.setattr("groupwise.config.train_keyword_arguments.methods", lambda: two)
    assert (base_name(gspo()), base_name(gspo(low=0.5))) == ("second", "first")


def test_the_words_of_the_library_are_fields_of_the_recipe() -> None:
    assert fields_of({"data": "x", "reward": "math", "max_tokens": 9}, {}) == {
        "task": "x", "verifier": "math", "sampling.max_tokens": 9
    }  # fmt: skip
    for word, field in (("data", "task"), ("reward", "verifier")):
        with pytest.raises(Usage, match=f"{word} and {field} set the same field"):
            fields_of({word: "x"}, {field: "y"})


def test_rows_in_memory_are_written_as_json_lines(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "answer": "2", "level": 1}, {"prompt": "\u2028\ud800", "answer": None}]
    assert rows_in_memory(iter(rows)) == rows and rows_in_memory("rows.jsonl") is None
    write_rows(rows, tmp_path / "data.jsonl")
    lines = (tmp_path / "data.jsonl").read_bytes().splitlines()
    assert list(map(json.loads, lines)) == rows


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"train": []}, BadData, "no rows"),
        ({"train": [{}], "test": [{}]}, Usage, "data is a dict"),
        (3, Usage, "data is int"),
        ([], BadData, "no rows"),
        ([{"prompt": "1"}, "2"], BadData, "row 2 of data is str"),
    ],
)
def test_data_that_are_no_rows_are_named(data, error, words) -> None:
    with pytest.raises(error, match=words):
        rows_in_memory(data)


def test_a_column_that_is_not_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="row 2") as caught:
        write_rows([{"prompt": "1"}, {"prompt": "2", "level": b"x"}], tmp_path / "data.jsonl")
    assert "'level' is bytes" in str(caught.value) and not (tmp_path / "data.jsonl").exists()


def short(answer):
    return -len(answer)


def test_a_reward_is_a_name_a_function_or_several_with_weights() -> None:
    def inner(answer):
        return len(answer) + len(rows_in_memory.__name__)

    assert reward_of("math").verifier_toml == "math"
    of_file = {"kind": "Function", "name": "short", "file": "code/reward.py"}
    assert reward_of(short).verifier_toml == of_file
    assert reward_of(short).source_code == "def short(answer):\n    return -len(answer)\n"
    of_program = {"kind": "Function", "name": "inner", "file": ""}
    assert reward_of(inner).verifier_toml == of_program and reward_of(inner).functions_in_memory == {"inner": inner}
    several = reward_of({"right": gw.Text(match_case=True), "short": (0.1, short), "more": inner})
    assert several.verifier_toml == {
        "kind": "Combined",
        "members": [
            {"name": "right", "verifier": table_of(gw.Text(match_case=True)), "weight": 1.0},
            {"name": "short", "verifier": of_file, "weight": 0.1},
            {"name": "more", "verifier": of_program, "weight": 1.0},
        ],
    }
    nested = reward_of({"kind": "NoisyVerdicts", "verifier": inner, "rejects": 0.1})
    assert nested.verifier_toml == {"kind": "NoisyVerdicts", "verifier": of_program, "rejects": 0.1}
    assert nested.functions_in_memory == {"inner": inner}


@pytest.mark.parametrize("reward", [3, {"a b": short}, {"a": ("x", short)}, {"a": short, "b": short}])
def test_a_reward_of_another_kind_is_refused(reward) -> None:
    with pytest.raises(Usage):
        reward_of(reward)


@pytest.mark.parametrize(
    ("source", "columns", "row", "column"),
    [
        (None, None, {"prompt": "1+1="}, ""),
        (None, {"prompt": "question"}, {"question": "1+1="}, ""),
        (None, gw.Columns(prompt="question"), {"question": "1+1=", "answer": None}, ""),
        (None, {"prompt": "question"}, {"question": "1+1=", "answer": 2}, "answer"),
        (None, {"answer": "gold"}, {"prompt": "1+1="}, "gold"),
        (None, {"answer": "a.b"}, {"prompt": "1+1=", "a": {"b": 2}}, "a.b"),
        (None, {"answer": ""}, {"prompt": "1+1=", "answer": 2}, ""),
        ("columns.answer = 'gold'", None, {"prompt": "1+1=", "gold": 2}, "gold"),
        ("columns.answer = 'gold'", None, {"prompt": "1+1=", "answer": 2}, "answer"),
        ("columns.answer = ''", None, {"prompt": "1+1=", "answer": 2}, "answer"),
    ],
)
def test_gold_answers_come_from_the_column_that_the_rows_have(source, columns, row, column, tmp_path: Path) -> None:
    """A recipe's column, and that of the run that is evaluated, hold for rows that have it."""
    given = {} if columns is None else {"columns": columns}
    arguments = arguments_of({"data": [row]}, given)
    fields, _ = arguments.write(tmp_path / "rows.jsonl", tmp_path, Permissions(), source)
    assert tables_of(source or "", fields)["columns"]["answer"] == column


def test_evaluation_rows_an_adapters_rank_and_a_name_in_capitals(tmp_path: Path) -> None:
    arguments = arguments_of({"data": ROWS, "eval_data": ROWS[:2], "method": "Dr. GRPO"}, {"lora": 8})
    overrides, use = arguments.write(tmp_path / "data.jsonl", tmp_path / "code", Permissions())
    read = read_recipe("", overrides, use)
    assert read.lora is not None and read.lora.rank == 8 and read.method == dr_grpo()
    assert read.held_out == DataRows(str(tmp_path / "eval_data.jsonl"))
    assert len((tmp_path / "eval_data.jsonl").read_text().splitlines()) == 2
    with pytest.raises(Usage, match="eval_data and held_out set the same field"):
        arguments_of({"eval_data": ROWS}, {"held_out": "x.jsonl"})
    with pytest.raises(Usage, match="model is object"):
        arguments_of({"model": object()}, {})
    with pytest.raises(BadData, match="row 1 of eval_data is str"):
        arguments_of({"eval_data": ["1+1="]}, {})
