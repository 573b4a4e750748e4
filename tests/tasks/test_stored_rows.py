"""Rows with stored answers are read in the formats of TRL and of `datasets`; unusable rows are named."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData
from groupwise.data import Prompt
from groupwise.tasks.row_columns import RowColumns
from groupwise.tasks.rows_task import RowsTask
from groupwise.tasks.stored_rows import read_stored
from groupwise.tasks.typed_columns import TRUTH_TEXTS

USER, ANSWER = {"role": "user", "content": "7*5="}, {"role": "assistant", "content": "35"}
WORSE = {"role": "assistant", "content": "36"}


def ids_of(problem: Any) -> tuple[int, ...]:
    text = problem if isinstance(problem, str) else "|".join(m["content"] for m in problem)
    return tuple(map(ord, text))


def read(
    path: Path,
    *rows: object,
    plain: bool = True,
    splits_pairs: bool = False,
    number_columns: Sequence[str] = (),
    **columns: str,
) -> list[Prompt]:
    source = path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    how: dict[str, Any] = {"plain": plain, "splits_pairs": splits_pairs, "number_columns": number_columns}
    return read_stored(str(source), ids_of, RowColumns(**columns), **how)[0]


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prompt and completion": ({"prompt": "7*5=", "completion": "35"}, {"completion": "35"}),
    "prompt and answer": ({"prompt": "7*5=", "answer": "35"}, {"completion": "35"}),
    "messages": ({"messages": [USER, ANSWER]}, {"completion": [ANSWER]}),
    "messages as prompt and completion": ({"prompt": [USER], "completion": [ANSWER]}, {"completion": [ANSWER]}),
    "a pair": ({"prompt": "7*5=", "chosen": "35", "rejected": "36"}, {"chosen": "35", "rejected": "36"}),
    "a pair of conversations": (
        {"chosen": [USER, ANSWER], "rejected": [USER, WORSE]}, {"chosen": [ANSWER], "rejected": [WORSE]},
    ),
    "a pair of whole texts": ({"chosen": "7*5= 35", "rejected": "7*5= 46"}, {"chosen": " 35", "rejected": " 46"}),
    "a pair with its prompt in both": (
        {"prompt": "7*5=", "chosen": [USER, ANSWER], "rejected": [USER, WORSE]},
        {"chosen": [ANSWER], "rejected": [WORSE]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_formats(name: str, tmp_path: Path) -> None:
    row, stored = FORMS[name]
    (prompt,) = read(tmp_path, row)
    assert prompt.token_ids == ids_of("7*5=") and prompt.text == "7*5="
    assert {column: prompt.row[column] for column in stored} == stored


def test_a_pair_is_two_labelled_answers(tmp_path: Path) -> None:
    """Where a method compares no pairs, as in TRL. Another row stays one."""
    source = tmp_path / "rows.jsonl"
    rows = [{"prompt": "7*5=", "chosen": "35", "rejected": "36"}, {"prompt": "2*3=", "completion": "6", "label": False}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts, stats = read_stored(str(source), ids_of, RowColumns(), plain=True, splits_pairs=True)
    assert [(p.id, p.text, p.row["completion"], p.row["label"]) for p in prompts] == [
        ("rows/1/chosen", "7*5=", "35", True), ("rows/1/rejected", "7*5=", "36", False), ("rows/2", "2*3=", "6", False),
    ]  # fmt: skip
    assert (stats.row_count, stats.training_count) == (2, 3)


def test_answers_of_split_pairs_stay_in_the_order_of_their_rows(tmp_path: Path) -> None:
    """Also beside a held-out source, and where long prompts are left out: then a pair is one row."""
    rows = [{"prompt": f"{i}+1={'0' * 9 * (i == 7)}", "chosen": "35", "rejected": "36"} for i in range(30)]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = RowsTask.split(*read_stored(str(source), ids_of, RowColumns(), plain=True, splits_pairs=True))
    ids = [f"rows/{i + 1}/{side}" for i in range(30) for side in ("chosen", "rejected")]
    assert task.held_out and [p.id for p in task.entirely_training.training] == ids
    assert [p.id for p in task.entirely_held_out.held_out] == ids
    assert task.of_at_most(5).source_stats[0].too_long_rows == (8,)


LABELS: list[tuple[str, object]] = [
    ("jsonl", True), ("jsonl", False), ("csv", "True"), ("csv", "true"), ("csv", "1"), ("csv", "False"), ("csv", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "label"), LABELS)
@pytest.mark.parametrize("splits_pairs", [True, False])
def test_a_label_is_a_truth_value_in_each_format(
    ending: str, label: object, splits_pairs: bool, tmp_path: Path
) -> None:
    source = tmp_path / f"rows.{ending}"
    row = {"prompt": "7*5=", "completion": "35", "label": label}
    csv = f"prompt,completion,label\n7*5=,35,{label}\n"
    source.write_text(csv if ending == "csv" else json.dumps(row) + "\n")
    ((prompt,), _) = read_stored(str(source), ids_of, RowColumns(), plain=True, splits_pairs=splits_pairs)
    assert prompt.row["label"] is (str(label).lower() in ("true", "1"))


OTHER_VALUES = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(st.booleans())
    | st.text().filter(lambda text: text.strip().lower() not in TRUTH_TEXTS)
)


@given(OTHER_VALUES)
def test_any_other_label_is_refused_by_row(label: object) -> None:
    with TemporaryDirectory() as home, pytest.raises(BadData) as error:
        read(Path(home), LABELLED, {**LABELLED, "label": label})
    assert error.value.evidence.startswith("row 2: field 'label' is ") and "true or false" in error.value.evidence


LABELLED = {"prompt": "7*5=", "completion": "35", "label": True}


@pytest.mark.parametrize("missing", [{}, {"label": None}])
def test_all_rows_have_a_label_or_none_has(missing: dict[str, Any], tmp_path: Path) -> None:
    """Where a method trains by labels, all have one. A pair needs none, and what it has counts nothing."""
    row = {"prompt": "7*5=", "completion": "35", **missing}
    assert "label" not in read(tmp_path, row)[0].row
    with pytest.raises(BadData, match="1 of 2 rows") as error:
        read(tmp_path, LABELLED, row)
    assert error.value.evidence == "row 2: field 'label' is missing or null: it must be true or false"
    with pytest.raises(BadData, match="1 of 1 rows"):
        read(tmp_path, row, splits_pairs=True)
    assert (
        "label" not in read(tmp_path, LABELLED, {"prompt": "7*5=", "chosen": "35", "rejected": "36", "label": 0})[1].row
    )


def test_a_column_of_answers_may_be_called_label(tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, {"prompt": "7*5=", "label": "35"}, answer_column="label")
    assert prompt.row["completion"] == "35" and "label" not in prompt.row


def test_a_margin_is_a_finite_number_in_each_format(tmp_path: Path) -> None:
    pair = {"prompt": "7*5=", "chosen": "35", "rejected": "36"}
    rows = read(tmp_path, {**pair, "margin": 2}, {**pair, "margin": "0.5"}, pair, number_columns=("margin",))
    assert [prompt.row.get("margin") for prompt in rows] == [2, 0.5, None]
    for margin in ("big", "nan", "", True, [1], 10**400):
        with pytest.raises(BadData) as error:
            read(tmp_path, pair, {**pair, "margin": margin}, number_columns=("margin",))
        assert error.value.evidence.startswith("row 2: field 'margin' is ") and "number" in error.value.evidence


def test_a_whole_text_follows_its_first_token(tmp_path: Path) -> None:
    (prompt,) = read(tmp_path, {"text": "7*5=35"})
    assert (prompt.token_ids, prompt.row["completion"]) == (ids_of("7"), {"text": "7*5=35"})
    with pytest.raises(BadData, match="rows have no stored answer") as error:
        read(tmp_path, {"text": "7*5=35"}, plain=False)
    assert "use --template no" in error.value.evidence


def test_turns_of_users_and_tools_stay_in_the_answer(tmp_path: Path) -> None:
    talk = [USER, ANSWER, {"role": "user", "content": "and 7*6?"}, {"role": "assistant", "content": "42"}]
    (prompt,) = read(tmp_path, {"messages": [{"role": "system", "content": "Count."}, *talk]})
    assert [m["role"] for m in prompt.row["messages"]] == ["system", "user"]
    assert [m["role"] for m in prompt.row["completion"]] == ["assistant", "user", "assistant"]


def test_every_row_counts_and_keeps_its_columns(tmp_path: Path) -> None:
    """Answers to one prompt may differ, an answer may be long, and a gold answer stays for evaluations."""
    long = "1" * 20_000
    first = {"prompt": "7*5=", "completion": long, "answer": "35", "level": 3}
    prompts = read(tmp_path, first, {**first, "completion": "35"}, first)
    assert [p.id for p in prompts] == ["rows/1", "rows/2", "rows/3"]
    assert (prompts[0].row["completion"], prompts[0].row["answer"], prompts[0].row["level"]) == (long, "35", 3)


def test_columns_of_other_names(tmp_path: Path) -> None:
    (prompt,) = read(
        tmp_path, {"question": "7*5=", "solution": "35"}, prompt_column="question", answer_column="solution"
    )
    assert (prompt.text, prompt.row["completion"]) == ("7*5=", "35")


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
FAULTS: dict[str, tuple[object, str]] = {
    "no answer": ({"prompt": "7*5="}, "no field 'answer'"),
    "an empty one": ({"prompt": "7*5=", "completion": " "}, "field 'completion' is empty"),
    "a number": ({"prompt": "7*5=", "completion": 35}, "an answer must be text or messages"),
    "no prompt": ({"chosen": "35", "rejected": "46"}, "its answers have no common beginning"),
    "a text that begins the other one": ({"chosen": "7*5=35", "rejected": "7*5="}, "field 'rejected' is empty"),
    "the user last": ({"messages": [USER, ANSWER, USER]}, "do not begin and end with the assistant's"),
    "the assistant first": ({"messages": [ANSWER]}, "no prompt and then an answer"),
    "the user alone": ({"messages": [USER]}, "no prompt and then an answer"),
    "two answers": ({"messages": [USER, ANSWER, ANSWER]}, "without the other side between them"),
    "two replies": ({"messages": [USER, ANSWER, USER, USER, ANSWER]}, "without the other side between them"),
    "calls without a chat template": ({"messages": [USER, CALL]}, "use --template chat"),
    "a call without a name": ({"messages": [USER, {**CALL, "tool_calls": [{}]}]}, "without the name of a function"),
    "calls of a user": ({"messages": [{**CALL, "role": "user"}, ANSWER]}, "not a list in a message of the assistant"),
    "arguments that are no JSON": (
        {"messages": [USER, {**CALL, "tool_calls": [{"function": {"name": "add", "arguments": "{"}}]}]},
        "arguments that are not JSON",
    ),
    "arguments that are no object": (
        {"messages": [USER, {**CALL, "tool_calls": [{"function": {"name": "add", "arguments": [1]}}]}]},
        "arguments that are a list",
    ),
    "parts in a message with calls": (
        {"messages": [USER, {**CALL, "content": [1]}]},
        "the content of a message is a list",
    ),
    "not an object": ([1], "not an object"),
    "an empty text": ({"text": ""}, "field 'text' is empty"),
    "a text of one token": ({"text": "7"}, "one token"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_unusable_row_is_named(name: str, tmp_path: Path) -> None:
    row, why = FAULTS[name]
    with pytest.raises(BadData, match="1 of 2 rows have no stored answer that can be used") as error:
        read(tmp_path, {"prompt": "7*5=", "completion": "35"}, row)
    assert error.value.evidence.startswith("row 2: ") and why in error.value.evidence
    assert '"completion": "35"' in error.value.fix


def test_a_file_without_rows(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="holds no stored answer"):
        read(tmp_path)
