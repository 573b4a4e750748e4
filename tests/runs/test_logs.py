"""Logs and samples: complete lines, equal files after a resume, no data lost while the disk is full."""

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from groupwise.core import Storage
from groupwise.runs.atomic_writes import FileSystemOperations
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs


def iterate(logs: RunLogs, iteration: int) -> None:
    logs.metrics({"iteration": iteration, "reward": 1 / (iteration + 3), "text": "é\n\u2028\ud800"})
    logs.timings({"iteration": iteration, "seconds": 0.5})
    logs.samples(iteration, [{"text": "a"}, {"text": "b"}], {"advantage": torch.tensor([0.1, iteration])})


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def run_of(path: Path, iterations: int) -> Path:
    path.mkdir()
    logs = RunLogs(RunLayout(path))
    for iteration in range(1, iterations + 1):
        iterate(logs, iteration)
    logs.close()
    return path


def test_lines_read_back_equal_and_in_order(tmp_path: Path) -> None:
    logs = RunLogs(RunLayout(tmp_path))
    line = {"z": 0.1 + 0.2, "a": 5e-324, "n": -0.0, "big": 2**70, "list": [1.5, {"x": None}], "text": "é\n\u2028\ud800"}
    logs.metrics(line)
    logs.metrics({"nan": math.nan, "deep": {"inf": [math.inf, -math.inf, 1.0]}})
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert repr(lines[0]) == repr(line)
    assert lines[1] == {"nan": None, "deep": {"inf": [None, None, 1.0]}}
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 2


def test_equal_runs_write_equal_bytes(tmp_path: Path) -> None:
    assert contents(run_of(tmp_path / "a", 3)) == contents(run_of(tmp_path / "b", 3))


def test_samples_are_two_files_an_iteration(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", 2)
    assert sorted(path.name for path in (run / "samples").iterdir()) == [
        "000001.jsonl",
        "000001.safetensors",
        "000002.jsonl",
        "000002.safetensors",
    ]
    assert read_lines(run / "samples/000002.jsonl") == [{"text": "a"}, {"text": "b"}]
    assert torch.equal(load_file(run / "samples/000002.safetensors")["advantage"], torch.tensor([0.1, 2]))


def test_a_torn_last_line_is_left_out_at_every_byte(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", 3)
    path = run / "metrics.jsonl"
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        complete = data[:size].count(b"\n")
        assert [line["iteration"] for line in read_lines(path)] == [1, 2, 3][:complete]
        assert complete == 2 or size < last or size == len(data)
    assert read_lines(run / "missing.jsonl") == []


@pytest.mark.parametrize("text", [b"{]\n{}\n", b"5\n", b"\n", b"\0\0\n", b"[" * 100_000 + b"\n", b"\xff\n"])
def test_a_damaged_complete_line_raises(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n" + text)
    with pytest.raises(Storage, match="line 2 of"):
        read_lines(tmp_path / "metrics.jsonl")


def test_resume_goes_back_to_the_checkpoint_and_writes_equal_files(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", 2)
    state = RunLogs(RunLayout(run)).state()
    expected = contents(run_of(tmp_path / "b", 4))
    logs = RunLogs(RunLayout(run))
    iterate(logs, 3)
    for extra in (b"", b'{"iteration": 4', b"\n\n"):
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(extra)
        (run / "samples/.writing-000004.jsonl").write_text("half")
        logs = RunLogs.resume(RunLayout(run), state, 2)
        assert [line["iteration"] for line in read_lines(run / "metrics.jsonl")] == [1, 2]
        assert len(list((run / "samples").iterdir())) == 4
        iterate(logs, 3)
        iterate(logs, 4)
        assert contents(run) == expected


def test_resume_without_a_checkpoint_empties_the_logs_and_leaves_other_files(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", 2)
    for name in ("notes.txt", "12.jsonl", "000009.txt"):
        (run / "samples" / name).write_text("mine")
    logs = RunLogs.resume(RunLayout(run), {}, 0)
    assert sorted(path.name for path in (run / "samples").iterdir()) == ["000009.txt", "12.jsonl", "notes.txt"]
    assert logs.state()["sizes"] == {"metrics": 0, "timings": 0, "samples": 0}


def test_a_log_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", 2)
    state = RunLogs(RunLayout(run)).state()
    os.truncate(run / "metrics.jsonl", state["sizes"]["metrics"] - 1)
    with pytest.raises(Storage, match=r"metrics\.jsonl was changed after checkpoint 2 was saved") as caught:
        RunLogs.resume(RunLayout(run), state, 2)
    assert str(state["sizes"]["metrics"]) in caught.value.evidence


class Full(FileSystemOperations):
    """While `full`, each write stores half of its data and raises ENOSPC."""

    full = False

    def _room(self, path: Path) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def append(self, path: Path, data: bytes) -> None:
        super().append(path, data[: len(data) // 2] if self.full else data)
        self._room(path)

    def write(self, path: Path, data: bytes) -> None:
        super().write(path, data[: len(data) // 2] if self.full else data)
        self._room(path)


def test_a_full_disk_loses_no_line_and_fails_only_the_checkpoint(tmp_path: Path) -> None:
    run, disk = tmp_path / "a", Full()
    run.mkdir()
    logs = RunLogs(RunLayout(run), disk=disk)
    iterate(logs, 1)
    assert logs.failures == 0
    disk.full = True
    iterate(logs, 2)
    iterate(logs, 3)
    assert logs.failures > 0
    assert [line["iteration"] for line in read_lines(run / "metrics.jsonl")] in ([1], [1, 2])
    assert not list((run / "samples").glob(".writing-*"))
    with pytest.raises(Storage, match="the logs could not be written") as caught:
        logs.state()
    assert "free space" in caught.value.fix
    disk.full = False
    iterate(logs, 4)
    failures, sizes = logs.failures, logs.state()["sizes"]
    expected = contents(run_of(tmp_path / "b", 4))
    assert contents(run) == expected and sizes["metrics"] == len(expected["metrics.jsonl"])
    logs.close()
    assert logs.failures == failures


def test_a_line_that_json_cannot_write_raises_at_once(tmp_path: Path) -> None:
    logs = RunLogs(RunLayout(tmp_path))
    with pytest.raises(TypeError):
        logs.metrics({"tensor": torch.zeros(1)})
    logs.metrics({"iteration": 1})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"iteration": 1}
