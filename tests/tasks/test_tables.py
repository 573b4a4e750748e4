"""Rows of CSV files and of JSON arrays: what is read, and each fault with its row or its fix."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import BadData
from groupwise.tasks import read_tables
from groupwise.tasks.read_rows import DataRowError, is_source, rows_of

ROWS = [{"prompt": 'say "1+1="', "answer": "2"}, {"prompt": "two\nlines, and ä comma", "answer": "3"}]


def read(path: Path, content: str | bytes) -> list[Any]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert is_source(str(path))
    return [str(row) if isinstance(row, DataRowError) else row for _, row in rows_of(str(path))]


def text_of(rows: list[dict[str, str]], path: Path, delimiter: str = ",") -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path.read_text()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_file_reads_back(delimiter: str, tmp_path: Path) -> None:
    content = text_of([{**row, "answer": row["answer"]} for row in ROWS], tmp_path / "w.csv", delimiter)
    assert read(tmp_path / "a.csv", content) == ROWS
    assert read(tmp_path / "a.csv", b"\xef\xbb\xbf" + content.encode()) == ROWS  # as Excel writes it
    assert read(tmp_path / "a.csv", content.replace("two\nlines", "two").replace("\n", "\r\n"))[0] == ROWS[0]


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))] * 2)))
def test_any_text_reads_back_from_csv(tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    rows = [{"prompt": f"p{a}", "answer": b} for a, b in cells]
    assert read(path, text_of(rows, path) if rows else "prompt,answer\n") == rows


def test_faults_of_csv_name_their_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert read(path, "prompt,answer\n1+1=,2\n1+2=\n\n1+3=,4,5\n")[1:] == [
        "it has 1 values, and the first line names 2 columns",
        "it has 3 values, and the first line names 2 columns",
    ]
    for content, what in (
        ("", "no header"),
        ("prompt,prompt\n1,2\n", "no header"),
        (",answer\n1,2\n", "no header"),
        ('prompt,answer\n"open,2\n', "is not CSV"),
        ("prompt,answer\ncaf\xe9,2\n".encode("latin-1"), "line 2 of .* is not UTF-8"),
    ):
        with pytest.raises(BadData, match=what) as error:
            read(path, content)
        assert error.value.fix
    limit = csv.field_size_limit()
    with pytest.raises(BadData, match="is not CSV"):
        read(path, 'prompt,answer\n"' + "x" * (read_tables.LONGEST_FIELD + 1))
    assert csv.field_size_limit() == limit


def test_a_json_array_and_an_object_with_one_list_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for data in (ROWS, {"data": ROWS, "version": 2}):
        for indent in (None, 1):
            assert read(path, json.dumps(data, indent=indent)) == ROWS
    one = {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}
    assert read(path, json.dumps(one)) == [one] and read(path, json.dumps(ROWS[0])) == ROWS[:1]
    assert read(path, "".join(json.dumps(row) + "\n" for row in ROWS)) == ROWS  # JSON lines
    assert read(path, '[{"prompt": "1"}, 7]')[1] == "a number, not an object"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[1, 2", "is not JSON"),
        ("[NaN]", "is not JSON"),
        ('{\n"train": [], "test": []}', "holds no list of rows"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_json_file_without_rows_has_a_fix(content: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=what) as error:
        read(tmp_path / "a.json", content)
    assert "write a list of objects" in error.value.fix


def test_an_array_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_tables, "LARGEST_ARRAY", 10)
    with pytest.raises(BadData, match="is too large"):
        read(tmp_path / "a.json", json.dumps(ROWS))


def test_a_directory_with_csv_files(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{}")
    read(tmp_path / "train.csv", "prompt,answer\n1+1=,2\n")
    assert [row for _, row in rows_of(str(tmp_path))] == [{"prompt": "1+1=", "answer": "2"}]
    (tmp_path / "test.json").write_text(json.dumps(ROWS))
    assert [row for _, row in rows_of(str(tmp_path), "test")] == ROWS
