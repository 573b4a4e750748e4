"""run.json: round trip, optional fields, damaged files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.core import Storage
from groupwise.runs.run_info import FORMAT, OPTIONAL, RunInfo
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.write_run_info import write_info
from tests.runs.infos import INFO


@pytest.mark.parametrize(
    "info",
    [
        INFO,
        replace(
            INFO, keys=("KEY",), judges=("host",), engine_hosts=("gpu-1",), engine_nccl=("gpu-1",), engine_python="p",
            unsafe_local_exec=True, trust_remote_code={"a.py": "1"}, adapter="a",
            base_sha256="2", model_commit="3", data=({"source": "s", "rows": 1, "sha256": "4"},),
            side_models={"teacher": "5"}, changes=({"iteration": 1, "changes": ["x"]},),
        ),
    ],
)  # fmt: skip
def test_info_reads_back_equal(tmp_path: Path, info: RunInfo):
    write_info(RunLayout(tmp_path), info)
    assert RunInfo.read(RunLayout(tmp_path)) == info
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_empty_optional_fields_are_left_out(tmp_path: Path):
    write_info(RunLayout(tmp_path), INFO)
    names = json.loads((tmp_path / "run.json").read_text()).keys()
    assert not names & OPTIONAL and {"use", "changes", "data"} <= names


@pytest.mark.parametrize(
    "text", ["{", "[1]", f'{{"format": {FORMAT}}}', f'{{"format": {FORMAT}, "name": "x"}}', "\udcff"]
)
def test_a_damaged_file_raises(tmp_path: Path, text: str):
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(Storage, match=r"run\.json cannot be read"):
        RunInfo.read(RunLayout(tmp_path))


@pytest.mark.parametrize(
    ("number", "version", "fix"),
    [
        (None, "another version", "use that version, or start a new run"),
        (FORMAT - 1, "another version", "use that version, or start a new run"),
        (str(FORMAT), "another version", "use that version, or start a new run"),
        (FORMAT + 1, "a newer version", "pip install --upgrade"),
    ],
)
def test_another_format_raises_with_a_fix(tmp_path: Path, number: object, version: str, fix: str):
    (tmp_path / "run.json").write_text(json.dumps(INFO.to_json() | {"format": number}))
    with pytest.raises(Storage, match=f"was written by {version} of Groupwise") as error:
        RunInfo.read(RunLayout(tmp_path))
    assert error.value.evidence == f"format {number}; this version reads format {FORMAT}" and fix in error.value.fix


def test_a_missing_file_raises(tmp_path: Path):
    with pytest.raises(Storage, match=r"run\.json cannot be read"):
        RunInfo.read(RunLayout(tmp_path))
