"""run.json: round trip, optional fields, damaged files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.data import Storage
from groupwise.runs.info import OPTIONAL, RunInfo
from groupwise.runs.layout import RunLayout
from tests.runs.infos import INFO


@pytest.mark.parametrize(
    "info",
    [
        INFO,
        replace(
            INFO, keys=("KEY",), judges=("host",), engine_hosts=("gpu-1",), engine_python="p",
            unsafe_local_exec=True, trust_remote_code={"a.py": "1"}, adapter="a",
            base_sha256="2", model_commit="3", data=({"source": "s", "rows": 1, "sha256": "4"},),
            side_models={"teacher": "5"}, changes=({"iteration": 1, "changes": ["x"]},),
        ),
    ],
)  # fmt: skip
def test_info_reads_back_equal(tmp_path: Path, info: RunInfo):
    info.write(RunLayout(tmp_path))
    assert RunInfo.read(RunLayout(tmp_path)) == info
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_empty_optional_fields_are_left_out(tmp_path: Path):
    INFO.write(RunLayout(tmp_path))
    names = json.loads((tmp_path / "run.json").read_text()).keys()
    assert not names & OPTIONAL and {"use", "changes", "data"} <= names


@pytest.mark.parametrize("text", ["{", "[1]", '{"format": 2}', '{"format": 2, "name": "x"}', "\udcff"])
def test_a_damaged_file_raises(tmp_path: Path, text: str):
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Storage, match=r"run\.json cannot be read"):
        RunInfo.read(RunLayout(tmp_path))


def test_a_missing_file_raises(tmp_path: Path):
    with pytest.raises(Storage, match=r"run\.json cannot be read"):
        RunInfo.read(RunLayout(tmp_path))
