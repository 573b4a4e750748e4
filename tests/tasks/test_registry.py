"""Tasks and verifiers by name, and suggestions for unknown names."""

import json

import pytest

from groupwise.config.recipe_toml import read_verifier
from groupwise.config.user_code import Use
from groupwise.core import BadData, Usage
from groupwise.data import Verifier
from groupwise.tasks import Calculator, Problems, find_task
from groupwise.tasks.registry import takes_columns
from groupwise.verifiers import CalculatorAnswer, Exact, Grading, LastNumber
from tests.verifiers.built import built


def encode(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def task_of(tmp_path, *golds) -> Problems:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"q": f"p{i}", "answer": g}) for i, g in enumerate(golds)))
    task = find_task(str(path), encode, prompt="q")
    assert isinstance(task, Problems)
    return task


def test_names_lead_to_tasks(tmp_path):
    assert isinstance(find_task("calculator", encode), Calculator)
    assert len(task_of(tmp_path, 1, 2, 3).held_out) >= 1


def test_a_folder_with_the_name_of_a_packaged_task_does_not_hide_it(home):
    (home / "calculator").mkdir()
    (home / "calculator" / "train.jsonl").write_text('{"prompt": "p", "answer": "1"}\n' * 3)
    assert isinstance(find_task("calculator", encode), Calculator) and not takes_columns("calculator")
    assert isinstance(find_task("./calculator", encode), Problems) and takes_columns("./calculator")


@pytest.mark.parametrize(
    "name,options,message",
    [
        ("calculater", {}, "did you mean calculator?"),
        ("zzz", {}, "for your own rows, give the path of a .jsonl or .parquet file"),
        ("gsm9k", {}, "did you mean gsm8k?"),
        ("gsm8k", {"prompt": "q"}, "leave it out"),
        ("reasoning_gym:leg_counting", {"prompt": "q"}, "leave it out"),
        ("", {}, "take calculator"),
        ("calculator", {"prompt": "q"}, "leave it out"),
        ("a.jsonl", {"promt": "q"}, "did you mean prompt?"),
        ("a.jsonl", {"shuffle": "q"}, "take prompt or answer or held_out"),
    ],
)
def test_an_unknown_name_or_option_gets_a_suggestion(name: str, options: dict, message: str):
    with pytest.raises(Usage) as caught:
        find_task(name, encode, **options)
    assert message in caught.value.fix


def test_a_missing_file_ending_is_suggested(tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "a", "answer": 1}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage) as caught:
        find_task("mine", encode)
    assert "write mine.jsonl" in caught.value.fix
    assert len(find_task("mine.jsonl", encode)) == 1


def test_names_lead_to_verifiers(tmp_path):
    task = task_of(tmp_path, 1, "2")
    assert built("exact", task) == Exact()
    assert built("last_number", task) == LastNumber()
    assert built("calculator_answer", Calculator(encode)) == CalculatorAnswer()
    assert isinstance(Exact(), Verifier) and isinstance(LastNumber(), Verifier)


@pytest.mark.parametrize(
    "name,message",
    [
        ("exakt", "did you mean exact?"),
        ("last-number", "did you mean last_number?"),
        ("zzz", "for your own function, write my_file:grade and add --use my_file.py"),
        ("my_file:grade", "add --use my_file.py"),
        ("calculator_answer", "take exact or last_number"),
    ],
)
def test_an_unknown_verifier_gets_a_suggestion(tmp_path, name: str, message: str):
    with pytest.raises(Usage) as caught:
        Grading(task_of(tmp_path, 1)).build(read_verifier(name, Use()))
    assert message in caught.value.fix


UNFIT = [("last_number", "about 5"), ("last_number", True), ("exact", [1]), ("exact", {"a": 1}), ("exact", False)]


@pytest.mark.parametrize("name,gold", UNFIT)
def test_gold_answers_are_checked_before_the_run(tmp_path, name: str, gold: object):
    with pytest.raises(BadData) as caught:
        built(name, task_of(tmp_path, 1, 2, gold))
    assert "a/3" in caught.value.evidence
