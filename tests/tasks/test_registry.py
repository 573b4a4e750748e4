"""Tasks and verifiers by name, and suggestions for unknown names."""

import json

import pytest

from groupwise.config.recipe_toml import read_verifier
from groupwise.config.user_code import UserCode
from groupwise.core import BadData, Usage
from groupwise.data import Verifier
from groupwise.tasks import Calculator, DataRows, PublishedSet, RowsTask, named_task
from groupwise.verifiers import CalculatorAnswer, Exact, LastNumber, VerifierContext
from tests.verifiers.built import built


def encode(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def task_of(tmp_path, *golds) -> RowsTask:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"q": f"p{i}", "answer": g}) for i, g in enumerate(golds)))
    task = DataRows(str(path)).build(encode, prompt="q")
    assert isinstance(task, RowsTask)
    return task


def test_names_lead_to_tasks(tmp_path):
    assert named_task("calculator") == Calculator() and named_task("aime24") == PublishedSet("aime24")
    assert len(task_of(tmp_path, 1, 2, 3).held_out) >= 1


def test_a_folder_with_the_name_of_a_packaged_task_does_not_hide_it(home):
    (home / "calculator").mkdir()
    (home / "calculator" / "train.jsonl").write_text('{"prompt": "p", "answer": "1"}\n' * 3)
    assert named_task("calculator") == Calculator() and named_task("./calculator") == DataRows("./calculator")
    assert isinstance(named_task("./calculator").build(encode), RowsTask)


@pytest.mark.parametrize(
    "name,message",
    [
        ("calculater", "did you mean calculator?"),
        ("zzz", "for your own rows, give the path of a .jsonl, .json, .csv or .parquet file"),
        ("gsm9k", "did you mean gsm8k?"),
        ("", "or calculator or"),
        ("my_file:Mine", "task=Mine(...)"),
        ("gsm8k:rows.jsonl", "--task gsm8k --task.source rows.jsonl"),
        ("reasoning_gym:leg_counting", "--task reasoning_gym --task.name leg_counting"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(name: str, message: str):
    with pytest.raises(Usage) as caught:
        named_task(name).build(encode)
    assert message in caught.value.fix


def test_a_missing_file_ending_is_suggested(tmp_path, monkeypatch):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "a", "answer": 1}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Usage) as caught:
        named_task("mine").build(encode)
    assert "write mine.jsonl" in caught.value.fix
    assert len(named_task("mine.jsonl").build(encode)) == 1


def test_names_lead_to_verifiers(tmp_path):
    task = task_of(tmp_path, 1, "2")
    assert built("exact", task) == Exact()
    assert built("last_number", task) == LastNumber()
    assert built("calculator_answer", Calculator().build(encode)) == CalculatorAnswer()
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
        VerifierContext(task_of(tmp_path, 1)).build(read_verifier(name, UserCode()))
    assert message in caught.value.fix


UNFIT = [("last_number", "about 5"), ("last_number", True), ("exact", [1]), ("exact", {"a": 1}), ("exact", False)]


@pytest.mark.parametrize("name,gold", UNFIT)
def test_gold_answers_are_checked_before_the_run(tmp_path, name: str, gold: object):
    with pytest.raises(BadData) as caught:
        built(name, task_of(tmp_path, 1, 2, gold))
    assert "a/3" in caught.value.evidence
