"""Published sets by name, from disk: the problems of their rows, and their splits."""

import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.core import BadData, Usage
from groupwise.data import Task
from groupwise.tasks import PublishedSet, RowsTask, named_task
from groupwise.tasks.published_sets import PRESETS
from groupwise.tasks.read_rows import DataRowError
from groupwise.tasks.row_columns import last_boxed
from groupwise.verifiers import Math, usual_verifier
from tests.tasks.published import OTHER_COPIES, PUBLISHED, gsm8k
from tests.verifiers.built import built

EVALUATED = ("aime24", "aime25", "amc", "math500", "minerva", "olympiadbench")


def encode(problem: Any) -> tuple[int, ...]:
    return tuple(map(ord, problem if isinstance(problem, str) else problem[-1]["content"]))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(name: str, path: Path) -> RowsTask:
    task = PublishedSet(name, str(path)).build(encode)
    assert isinstance(task, RowsTask) and isinstance(task, Task)
    return task


def golds(task: RowsTask) -> list[Any]:
    every = sorted((*task.training, *task.held_out), key=lambda p: int(p.id.rpartition("/")[2]))
    return [p.row["answer"] for p in every]


def test_every_preset_has_rows_here() -> None:
    assert list(PUBLISHED) == list(PRESETS)
    assert {name for name, preset in PRESETS.items() if not preset.training_split} == set(EVALUATED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_layout(tmp_path: Path, name: str) -> None:
    rows, expected = PUBLISHED[name]
    task = read(name, write(tmp_path / "rows.jsonl", rows))
    assert golds(task) == expected and [type(g) for g in golds(task)] == [type(g) for g in expected]
    assert all(p.id.startswith(f"{name}/") and p.text and p.token_ids for p in (*task.training, *task.held_out))
    assert (len(task) == 0) is (name in EVALUATED) and len(task.held_out) > 0


@pytest.mark.parametrize(
    "name,row,solution",
    [
        ("gsm8k", {"question": "How many?", "answer": "2 + 3 = 5\n#### 5"}, "2 + 3 = 5\n#### 5"),
        ("math", {"problem": "Half?", "solution": r"It is $\boxed{\frac{1}{2}}$.", "level": "Level 1"}, None),
    ],
)
def test_a_worked_solution_stays_in_the_row(tmp_path: Path, name: str, row: dict[str, Any], solution: str) -> None:
    (prompt,) = read(name, write(tmp_path / "rows.jsonl", [row])).training
    assert prompt.row["solution"] == (solution or row["solution"])
    assert prompt.row["answer"] in ("5", r"\frac{1}{2}") and prompt.row.get("level") == row.get("level")


@pytest.mark.parametrize("name,rows,expected", OTHER_COPIES)
def test_copies_with_other_columns(tmp_path: Path, name: str, rows: list[dict[str, Any]], expected: list[Any]) -> None:
    task = read(name, write(tmp_path / "rows.jsonl", rows))
    assert golds(task) == expected and [type(g) for g in golds(task)] == [type(g) for g in expected]


def test_a_directory_has_its_splits(tmp_path: Path) -> None:
    write(tmp_path / "main" / "train.jsonl", gsm8k())
    write(tmp_path / "main" / "test-00000-of-00001.jsonl", gsm8k(("Dee", "Eve")))
    task = read("gsm8k", tmp_path)
    assert [p.id for p in task.training] == ["gsm8k/1", "gsm8k/2", "gsm8k/3"]
    assert [p.id for p in task.held_out] == ["gsm8k-held-out/1", "gsm8k-held-out/2"]
    assert [(f.training_count, f.held_out_count) for f in task.source_stats] == [(3, 0), (0, 2)]


def test_an_overlap_is_refused_with_both_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", gsm8k())
    write(tmp_path / "test.jsonl", gsm8k(("Dee", "Bo", "Eve")))
    with pytest.raises(BadData) as caught:
        read("gsm8k", tmp_path)
    assert "1 problem to train on is held out too" in caught.value.what
    assert "gsm8k/2 and gsm8k-held-out/2" in caught.value.evidence and "row 2 of the training data" in caught.value.fix


def test_a_single_file_is_split_like_a_users_file(tmp_path: Path) -> None:
    task = read("gsm8k", write(tmp_path / "all.jsonl", gsm8k(tuple("ABCDEFGHIJ"))))
    assert len(task) and task.held_out and len(task) + len(task.held_out) == 10


def test_repeated_rows_are_used_once(tmp_path: Path) -> None:
    (facts,) = read("dapo-math-17k", write(tmp_path / "dapo.jsonl", PUBLISHED["dapo-math-17k"][0])).source_stats
    assert (facts.row_count, facts.repeated_rows) == (6, (2, 4, 6))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_usual_verifier_accepts_the_gold_answers(tmp_path: Path, name: str) -> None:
    task = read(name, write(tmp_path / "rows.jsonl", PUBLISHED[name][0]))
    verifier = usual_verifier(named_task(name))
    assert verifier == usual_verifier(PublishedSet(name, str(tmp_path)))
    assert named_task(name).template in ("no", "r1", "qwen_math", "chat")
    built(Math(use_algebra=False) if verifier == Math() else verifier, task)


FAULTY = [
    ("gsm8k", {"question": "a", "answer": "no mark"}, "has no ####"),
    ("gsm8k", {"question": "a", "answer": "it is\n#### "}, "holds no answer"),
    ("gsm8k", {"problem": "a", "answer": "#### 1"}, "no field 'question'"),
    ("math", {"problem": "a", "solution": "so 3"}, "has no \\boxed{...}"),
    ("math", {"problem": "a", "solution": "\\boxed{\\frac{1}{2}"}, "is not closed"),
    ("countdown", {"nums": [1, 2.5], "target": 3}, "a list of whole numbers"),
    ("countdown", {"nums": "1 2", "target": 3}, "a list of whole numbers"),
    ("aime24", {"problem": "a", "answer": ""}, "field 'answer' is empty"),
    ("dapo-math-17k", {"prompt": "a", "reward_model": {"style": "x"}}, "in reward_model style"),
]


@pytest.mark.parametrize("name,row,message", FAULTY, ids=[m for *_, m in FAULTY])
def test_a_row_of_another_kind_is_refused(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData) as caught:
        read(name, write(tmp_path / "rows.jsonl", [row]))
    assert "row 1: " in caught.value.evidence and message in caught.value.evidence


def test_the_last_box_of_a_solution() -> None:
    assert last_boxed("", "\\boxed{1} then $\\boxed{ \\text{a {b} c} }$.")[1] == "\\text{a {b} c}"
    with pytest.raises(DataRowError):
        last_boxed("", "\\boxed{1} then \\boxed{2")


def test_the_hub_is_queried_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = []

    def read_problems(source: str, encode: object, layouts: object, split: str, name: str) -> None:
        problem.append((source, split, name))
        raise Usage("enough")

    monkeypatch.setattr("groupwise.tasks.published_sets.read_problems", read_problems)
    for name in PRESETS:
        with pytest.raises(Usage, match="enough"):
            named_task(name).build(encode)
    assert problem[0] == ("datasets:openai/gsm8k:main", "train", "gsm8k")
    assert ("datasets:math-ai/aime25", "test", "aime25") in problem
