"""Run directory, lock and checkpoints: on a healthy disk, on a full disk, and with damaged files."""

import errno
import json
import math
import os
import pickle
import random
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.core import Locked, Storage
from groupwise.runs import checkpoints
from groupwise.runs.atomic_writes import DISK, FileSystemOperations
from groupwise.runs.checkpoints import RunLock, newest_checkpoint, run_directory, save_checkpoint
from groupwise.runs.run_layout import RunLayout

SECOND = 1_700_000_000.0
FILES = ("tensors.safetensors", "state.json", "manifest.json")


def tensors(iteration: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(60.0).reshape(5, 12) * math.pi ** (iteration % 7), "step": torch.tensor(iteration)}


def save(run: Path, *iterations: int, keep: int = 2, disk: FileSystemOperations = DISK) -> None:
    for iteration in iterations:
        save_checkpoint(
            RunLayout(run), iteration, tensors(iteration), {"done": iteration, "x": 0.1}, keep=keep, disk=disk
        )


def verified_iteration(run: Path) -> int:
    """The iteration of the newest checkpoint, after a check that its content is what `save` wrote."""
    newest = newest_checkpoint(RunLayout(run))
    assert newest is not None
    assert newest.state == {"done": newest.iteration, "x": 0.1}
    assert all(torch.equal(value, tensors(newest.iteration)[name]) for name, value in newest.tensors().items())
    assert len(newest.tensors()) == 2
    return newest.iteration


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# Round trips


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_tensors_read_back_bit_equal(tmp_path: Path, dtype: torch.dtype) -> None:
    odd = torch.tensor([[0.0, -0.0, math.inf], [-math.inf, math.nan, 0.1]], dtype=torch.float64).to(dtype)
    saved = {
        "odd": odd, "turned": odd.T, "tied": odd, "view": odd[0], "empty": odd[:0], "none": odd[:, :0],
        "one": odd[1, 2],
    }  # fmt: skip
    save_checkpoint(RunLayout(tmp_path), 7, saved, {}, keep=1)
    newest = newest_checkpoint(RunLayout(tmp_path))
    assert newest and newest.tensors().keys() == saved.keys()
    for name, value in newest.tensors().items():
        assert value.dtype == dtype and value.shape == saved[name].shape
        bits = [x.contiguous().flatten().view(torch.uint8).tolist() for x in (value, saved[name]) if x.numel()]
        assert not bits or bits[0] == bits[1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_state_reads_back_equal(state: dict) -> None:
    back = json.loads(checkpoints.plain_json(state))
    assert back == state and repr(back) == repr(state)  # repr distinguishes -0.0 from 0.0 and True from 1


@pytest.mark.parametrize("state", [{"a": [math.nan]}, {"a": math.inf}, {"a": {3: "three"}}, {"a": {1, 2}}])
def test_state_that_would_not_read_back_equal_raises_before_any_write(tmp_path: Path, state: dict) -> None:
    save(tmp_path, 1)
    with pytest.raises((ValueError, TypeError)):
        save_checkpoint(RunLayout(tmp_path), 2, tensors(2), state, keep=1)
    assert names(tmp_path) == ["000001"] and verified_iteration(tmp_path) == 1


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    assert newest_checkpoint(RunLayout(tmp_path)) is None
    (tmp_path / "checkpoints" / ".writing-000001").mkdir(parents=True)
    assert newest_checkpoint(RunLayout(tmp_path)) is None


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 9, 10, 11, 1_000_000, keep=2)
    assert names(tmp_path) == ["000011", "1000000"] and verified_iteration(tmp_path) == 1_000_000
    with pytest.raises(ValueError, match=r"keep.*is 0.*keep >= 1"):
        save(tmp_path, 12, keep=0)


def test_saving_deletes_checkpoints_of_later_iterations(tmp_path: Path) -> None:
    save(tmp_path, 5, 10)
    (tmp_path / "checkpoints/000010/state.json").write_text("{}")
    assert verified_iteration(tmp_path) == 5
    save(tmp_path, 6, keep=1)
    assert names(tmp_path) == ["000006"] and newest_checkpoint(RunLayout(tmp_path), strict=True)


def test_saving_an_iteration_twice_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(RunLayout(tmp_path), 3, {}, {"first": True}, keep=1)
    save(tmp_path, 3)
    assert names(tmp_path) == ["000003"] and verified_iteration(tmp_path) == 3


def test_leftovers_of_a_killed_save_are_ignored_then_deleted(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in (".writing-000002", ".deleting-000000"):
        (tmp_path / "checkpoints" / name / "deep").mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "tensors.safetensors").write_bytes(b"half")
    assert verified_iteration(tmp_path) == 1
    save(tmp_path, 2)
    assert names(tmp_path) == ["000001", "000002"]


# Damage


def flip_bit(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def extend(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(3))


def zero(path: Path, rng: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def unlink(path: Path, rng: random.Random) -> None:
    path.unlink()


def replace_by_link(path: Path, rng: random.Random) -> None:
    path.rename(path.parents[2] / f"moved-{path.name}")
    path.symlink_to(path.parents[2] / f"moved-{path.name}")


def replace_by_pipe(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.t(50)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "times"),
    [
        (flip_bit, 60), (truncate, 30), (extend, 2), (zero, 1), (unlink, 1), (replace_by_link, 1), (replace_by_pipe, 1),
        (replace_by_directory, 1),
    ],
)  # fmt: skip
def test_a_damaged_newest_checkpoint_is_named_and_the_previous_one_is_used(
    tmp_path: Path, name: str, damage: Callable[[Path, random.Random], None], times: int
) -> None:
    rng = random.Random(f"{name} {damage.__name__}")
    save(tmp_path, 1, 2)
    path = tmp_path / "checkpoints/000002" / name
    original = path.read_bytes()
    fallbacks = 0
    for _ in range(times):
        damage(path, rng)
        try:
            newest = newest_checkpoint(RunLayout(tmp_path))
        except Storage as error:  # a flip can turn format 1 into 3, 5 or 9, which raises
            assert (name, damage) == ("manifest.json", flip_bit) and "newer version" in error.what
        else:
            assert newest
            fallbacks += newest.iteration == 1
            if newest.iteration == 1:
                assert len(newest.skipped_checkpoint_warnings) == 1
                assert (
                    "000002 is damaged" in newest.skipped_checkpoint_warnings[0]
                    and "using 000001" in newest.skipped_checkpoint_warnings[0]
                )
                assert (
                    name in newest.skipped_checkpoint_warnings[0] or "manifest" in newest.skipped_checkpoint_warnings[0]
                )
                if damage in (truncate, extend) and name != "manifest.json":
                    assert f"{name} has {path.stat().st_size} bytes" in newest.skipped_checkpoint_warnings[0]
                with pytest.raises(Storage, match="000002 is damaged"):
                    newest_checkpoint(RunLayout(tmp_path), strict=True)
            assert verified_iteration(tmp_path) == newest.iteration
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(original)
    assert fallbacks >= times * (0.9 if name == "manifest.json" else 1)


@pytest.mark.t(50)
def test_all_checkpoints_damaged_raises(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    for path in (tmp_path / "checkpoints").glob("*/tensors.safetensors"):
        flip_bit(path, random.Random(0))
    with pytest.raises(Storage, match="every checkpoint of") as caught:
        newest_checkpoint(RunLayout(tmp_path))
    assert "000001" in caught.value.evidence and "000002" in caught.value.evidence and caught.value.code == 6


@pytest.mark.parametrize(
    "text", ["[]", "1", "{}", "[" * 100_000, '{"format": 1}', '{"format": 1, "iteration": 2, "files": ["state.json"]}']
)
def test_an_invalid_manifest_is_damage(tmp_path: Path, text: str) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoints/000002/manifest.json").write_text(text)
    assert verified_iteration(tmp_path) == 1


def test_a_renamed_checkpoint_is_damage(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoints/000002").rename(tmp_path / "checkpoints/000009")
    assert verified_iteration(tmp_path) == 1


def test_the_error_for_a_newer_format_advises_an_upgrade(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    path = tmp_path / "checkpoints/000002/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": checkpoints.FORMAT + 1}))
    with pytest.raises(Storage, match="newer version") as caught:
        newest_checkpoint(RunLayout(tmp_path))
    assert "pip install --upgrade" in caught.value.fix


class Canary:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("canary"),))


def test_other_files_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path, 1, 2)
    home = tmp_path / "checkpoints"
    for name in ("000002/optimizer.pt", "000002/.metadata", "000002/tensors.pkl", "notes.txt", "12", "000003"):
        (home / name).write_bytes(pickle.dumps(Canary()))
    (home / "000004").mkdir()
    (home / "000004" / "pytorch_model.bin").write_bytes(pickle.dumps(Canary()))
    (home / "000005").symlink_to(home / "000002")
    newest = newest_checkpoint(RunLayout(tmp_path))
    assert newest and newest.iteration == 2 and len(newest.skipped_checkpoint_warnings) == 2
    assert newest.tensors().keys() == tensors(2).keys()
    assert not (tmp_path / "canary").exists()


# Full disks


class Full(FileSystemOperations):
    """Has room for `room` bytes. A write that does not fit stores the part that fits."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, path: Path, data: bytes) -> None:
        super().write(path, data[: self.room])
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.room -= len(data)


@pytest.mark.parametrize("room", [0, 1, 300, 350, 400, 550])
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path, room: int) -> None:
    save(tmp_path, 1)
    with pytest.raises(Storage, match="checkpoint 2 could not be written") as caught:
        save(tmp_path, 2, disk=Full(room))
    assert "free space" in caught.value.fix and "MB needed" in caught.value.evidence
    assert names(tmp_path) == ["000001"] and verified_iteration(tmp_path) == 1
    save(tmp_path, 2)
    assert verified_iteration(tmp_path) == 2


def test_a_file_size_limit_raises_the_same_error(tmp_path: Path) -> None:
    save(tmp_path, 1)
    child = os.fork()
    if child == 0:
        code = 99
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            save_checkpoint(RunLayout(tmp_path), 2, {"big": torch.zeros(100_000)}, {}, keep=1)
        except Storage as error:
            code = error.code if "ulimit -f" in error.fix and "0.4 MB needed" in error.evidence else 98
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    assert names(tmp_path) == ["000001"] and verified_iteration(tmp_path) == 1


class Failing(FileSystemOperations):
    """Raises EIO in its n-th operation, once."""

    def __init__(self, number: int) -> None:
        self.remaining = number

    def __getattribute__(self, name: str) -> object:
        if name in OPERATIONS:
            self.remaining -= 1
            if self.remaining == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().__getattribute__(name)


OPERATIONS = {name for name in vars(FileSystemOperations) if not name.startswith("_")}


@pytest.mark.parametrize("again", [False, True])
def test_a_failure_in_any_operation_leaves_a_whole_checkpoint(tmp_path: Path, again: bool) -> None:
    failures = 0
    for number in range(1, 60):
        run = tmp_path / str(number)
        run.mkdir()
        save(run, 1)
        if again:
            save_checkpoint(RunLayout(run), 2, tensors(2), {"done": 2, "x": 0.1, "older": 1}, keep=1)
        disk = Failing(number)
        try:
            save(run, 2, keep=1, disk=disk)
        except Storage as error:
            failures += 1
            assert "Input/output error" in error.evidence
            if again:
                newest = newest_checkpoint(RunLayout(run), strict=True)
                assert newest and newest.iteration == 2
            else:
                assert verified_iteration(run) in (1, 2)
            assert not [name for name in names(run) if name.startswith(".writing")]
        else:
            assert disk.remaining > 0  # past the last operation
            break
        save(run, 3, keep=1)
        assert names(run) == ["000003"] and verified_iteration(run) == 3
    assert failures >= 14


def test_sync_calls_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    (tmp_path / "file").write_text("x")
    FileSystemOperations().sync(tmp_path / "file")
    FileSystemOperations().sync(tmp_path)
    assert synced == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


# Names and locks


def test_runs_started_in_one_second_get_different_directories(tmp_path: Path) -> None:
    runs = [run_directory(tmp_path / "runs", "calculator", lambda: SECOND) for _ in range(3)]
    assert len(set(runs)) == 3 and all(run.is_dir() for run in runs)
    assert re.fullmatch(r"calculator-2023111[45]-\d{6}", runs[0].name)
    assert runs[1].name == runs[0].name + "-2" and runs[2].name == runs[0].name + "-3"


@pytest.mark.parametrize("name", ["../../etc/x", "a b/c", "...", "", "é", "x\n"])
def test_a_recipe_name_cannot_leave_the_root(tmp_path: Path, name: str) -> None:
    run = run_directory(tmp_path / "runs", name, lambda: SECOND)
    assert run.parent == tmp_path / "runs" and run.resolve().parent == (tmp_path / "runs").resolve()
    assert run.name.isascii() and run.name[0] not in ".-"


def test_a_root_that_is_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(Storage, match="a run directory could not be written"):
        run_directory(tmp_path / "runs", "x", lambda: SECOND)


HOLD = """
import sys
from pathlib import Path
from groupwise.runs.checkpoints import RunLock
from groupwise.runs.run_layout import RunLayout
lock = RunLock(RunLayout(Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_raises_until_the_first_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(Locked) as caught:
            RunLock(RunLayout(tmp_path))
        assert caught.value.code == 8
        assert f"pid {holder.pid} on host {socket.gethostname()}" in caught.value.evidence
    finally:
        holder.kill()
        holder.communicate()
    with RunLock(RunLayout(tmp_path)):
        assert (tmp_path / "lock").read_text().startswith(f"pid {os.getpid()} ")
        with pytest.raises(Locked, match="another process"):
            RunLock(RunLayout(tmp_path))
    RunLock(RunLayout(tmp_path)).close()


def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    end, start = os.pipe()
    parent = os.fork()
    if parent == 0:
        lock = RunLock(RunLayout(tmp_path))
        worker = os.fork()
        if worker == 0:
            signal.pause()
        os.write(start, b"%d\n" % worker)
        signal.pause()
        lock.close()
    worker = int(os.read(end, 20))
    try:
        with pytest.raises(Locked):
            RunLock(RunLayout(tmp_path))
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        os.kill(worker, 0)  # the worker is alive
        RunLock(RunLayout(tmp_path)).close()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(end)
        os.close(start)
