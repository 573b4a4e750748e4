"""Demonstrations that lose their thoughts: which ones, what is left, and what is refused."""

import json
from pathlib import Path

import pytest

from groupwise.config.recipe import WarmStart
from groupwise.core import BadData
from groupwise.tasks.demonstrations import read_demonstrations
from groupwise.tasks.dropped_thoughts import DroppedThoughts
from groupwise.tasks.row_columns import RowColumns

TAGS = ("<think>", "</think>")


def answers(path: Path, dropped: DroppedThoughts | None) -> list[str]:
    prompts, _ = read_demonstrations(str(path), lambda text: (1,), RowColumns(), dropped)
    return [prompt.row["completion"] for prompt in prompts]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": "p", "answer": f"<think>thought {i}</think><answer>{i}</answer>"} for i in range(400)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_each_thought_is_dropped_once_for_all(rows: Path):
    """Half of the rows, the same ones at each reading, others with another seed; the answers stay."""
    half = answers(rows, DroppedThoughts(0.5, *TAGS))
    empty = [i for i, text in enumerate(half) if text == f"<think>\n\n</think><answer>{i}</answer>"]
    assert 160 < len(empty) < 240
    assert all(half[i] == f"<think>thought {i}</think><answer>{i}</answer>" for i in range(400) if i not in empty)
    assert answers(rows, DroppedThoughts(0.5, *TAGS)) == half != answers(rows, DroppedThoughts(0.5, *TAGS, seed=1))


def test_none_and_all(rows: Path):
    assert answers(rows, DroppedThoughts(0.0, *TAGS)) == answers(rows, None)
    assert all(text.startswith("<think>\n\n</think>") for text in answers(rows, DroppedThoughts(1.0, *TAGS)))


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("a<think>b</think>c</think>d", "a<think>\n\n</think>c</think>d"),
        ("no thought", "no thought"),
        ("</think>a", "</think>a"),
    ],
)
def test_what_is_left(answer: str, left: str):
    assert DroppedThoughts(1.0, *TAGS)(3, answer) == left


def test_a_thought_may_begin_the_answer():
    assert DroppedThoughts(1.0, "", "#")(0, "7*5=35;#35#") == "#35#"
    assert DroppedThoughts(1.0, "", "#")(0, "35") == "35"


def test_marks_that_no_demonstration_has_are_refused(rows: Path):
    with pytest.raises(BadData, match="has a thought between '' and '#'"):
        answers(rows, DroppedThoughts(0.5, "", "#"))
    with pytest.raises(ValueError, match="use 0 <= drop_thoughts <= 1"):
        WarmStart(demonstrations="x", drop_thoughts=1.5)
    with pytest.raises(ValueError, match="second mark"):
        WarmStart(demonstrations="x", thought_marks=("#", ""))
