"""Data frames, dicts of columns and of splits, and NaN, as `data` of the library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from groupwise.api.write_rows import rows_in_memory, write_rows
from groupwise.core import BadData, Usage
from groupwise.tasks.read_rows import rows_of

ROWS = [{"prompt": "1+1=", "answer": 2}, {"prompt": "1+2=", "answer": 3}]


class Frame:
    """A table with the method by which pandas, polars or pyarrow give rows."""

    columns = ("prompt", "answer")

    def __init__(self, method: str) -> None:
        setattr(self, method, lambda *arguments: ROWS)


@pytest.mark.parametrize("method", ["to_dict", "to_dicts", "to_pylist"])
def test_tables_are_rows(method: str) -> None:
    assert rows_in_memory(Frame(method)) == ROWS


@pytest.mark.parametrize(
    "data",
    [
        {"prompt": ["1+1=", "1+2="], "answer": [2, 3]},
        {"prompt": ("1+1=", "1+2="), "answer": np.array([2, 3])},
        {"prompt": {0: "1+1=", 1: "1+2="}, "answer": {0: 2, 1: 3}},
        {"train": ROWS},
        (row for row in ROWS),
        iter(ROWS),
    ],
)
def test_columns_and_generators_are_rows(data: Any) -> None:
    assert rows_in_memory(data) == ROWS


def test_splits_are_named() -> None:
    with pytest.raises(Usage, match="its values are not columns") as error:
        rows_in_memory({"train": ROWS, "test": ROWS})
    assert error.value.evidence == "its keys are train, test" and 'data=sets["train"]' in error.value.fix
    with pytest.raises(BadData, match="different lengths") as short:
        rows_in_memory({"prompt": ["a", "b"], "answer": [1]})
    assert short.value.evidence == "prompt has 2, answer has 1"


def test_nan_is_named_with_its_rows(tmp_path: Path) -> None:
    nan = float("nan")
    rows = [{"prompt": "a", "gold": nan, "level": 1}, *ROWS, {"prompt": "b", "gold": np.float64("nan"), "level": nan}]
    with pytest.raises(BadData, match="NaN in data is no value") as error:
        write_rows(rows, tmp_path / "rows.jsonl")
    assert error.value.evidence == "column 'gold' is NaN in 2 rows (1, 4)\ncolumn 'level' is NaN in row 4"
    assert "dropna" in error.value.fix and not (tmp_path / "rows.jsonl").exists()


def test_numbers_and_arrays_of_numpy_are_plain(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": np.int64(3), "golds": np.array([1, 2]), "more": {"x": np.float32(0.5)}}]
    write_rows(rows, tmp_path / "rows.jsonl")
    ((_, row),) = rows_of(str(tmp_path / "rows.jsonl"))
    assert row == {"prompt": "a", "answer": 3, "golds": [1, 2], "more": {"x": 0.5}}
