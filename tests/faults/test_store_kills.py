"""A run killed, or cut from power, at any operation of its store ends with the bytes of an undisturbed run."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.runs.atomic_writes import PARKED, FileSystemOperations, remove_leftovers, write_directory, write_file
from groupwise.runs.checkpoints import newest_checkpoint, save_checkpoint
from groupwise.runs.open_run import write_recipe
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs, log_paths
from groupwise.runs.write_run_info import write_info
from tests.faults.small_runs import Quick
from tests.runs.infos import INFO

OPERATIONS = ("mkdir", "write", "append", "truncate", "sync", "replace", "remove")


class Intercepted(Quick):
    """A disk whose operations all pass through `intercept`."""

    def intercept(self, name: str, act: Callable[..., None], *args: Any) -> None:
        raise NotImplementedError


for _name in OPERATIONS:
    setattr(
        Intercepted,
        _name,
        lambda self, *args, _n=_name: self.intercept(_n, getattr(super(Intercepted, self), _n), *args),
    )


def test_every_operation_is_intercepted() -> None:
    assert {name for name in vars(FileSystemOperations) if not name.startswith("_")} == set(OPERATIONS)


class Counting(Intercepted):
    """Records the names of the operations."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def intercept(self, name: str, act: Callable[..., None], *args: Any) -> None:
        self.names.append(name)
        act(*args)


class Dying(Intercepted):
    """Kills its process before, in the middle of, or after its n-th operation."""

    def __init__(self, number: int, moment: str) -> None:
        self.left, self.moment = number, moment

    def intercept(self, name: str, act: Callable[..., None], *args: Any) -> None:
        self.left -= 1
        if self.left == 0:
            if self.moment == "middle" and name in ("write", "append"):
                path, data = args
                act(path, data[: len(data) // 2])
            elif self.moment == "after":
                act(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        act(*args)


# A small run: its state is one tensor, and every iteration changes it by a fixed rule.


def train(run: Path, iterations: int, disk: FileSystemOperations, saved: list[int] | None = None) -> None:
    """Run from the newest checkpoint to `iterations`, as the loop does. `saved` gets the iteration of each save."""
    if not (run / "recipe.toml").exists():
        write_info(RunLayout(run), INFO, disk=disk)
        write_recipe(RunLayout(run), f"iterations = {iterations}\n", disk)
    found = newest_checkpoint(RunLayout(run))
    start = found.iteration if found else 0
    weight = found.tensors()["weight"] if found else torch.arange(12.0, dtype=torch.float64)
    record = RunLogs.resume(RunLayout(run), found.state if found else {}, start, disk=disk)
    for iteration in range(start + 1, iterations + 1):
        weight = (weight * 1.1 + iteration).sin()
        record.samples(iteration, [{"iteration": iteration, "sum": float(weight.sum())}], {"weight": weight})
        record.metrics({"iteration": iteration, "mean": float(weight.mean())})
        record.timings({"iteration": iteration})
        if iteration % 2 == 0 or iteration == iterations:
            save_checkpoint(RunLayout(run), iteration, {"weight": weight}, record.state(), keep=2, disk=disk)
            if saved is not None:
                saved.append(iteration)
    remove_leftovers(run, [run / f"model{PARKED}"], disk)
    with write_directory(run / "model", disk) as draft:
        (draft / "weights").write_bytes(weight.numpy().tobytes())
    write_file(run / "report.html", b"<p>done", disk)


def outcome(run: Path) -> dict[str, bytes]:
    """Logs, samples and the newest checkpoint. A kill within the last save may leave an older checkpoint too."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    newest = newest_checkpoint(RunLayout(run), strict=True)
    assert newest
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in files
        if "checkpoints" not in path.parts or newest.path in path.parents
    }


def undisturbed(run: Path, iterations: int) -> tuple[dict[str, bytes], list[str]]:
    run.mkdir()
    disk = Counting()
    train(run, iterations, disk)
    return outcome(run), disk.names


def killed(act: Callable[[], object]) -> bool:
    """Run `act` in a fork of this warm process. Return whether it was killed before its end."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def moments(names: list[str]) -> Iterator[tuple[int, str]]:
    """Every moment of death: before each operation, in the middle of each write, and after the last operation."""
    for number, name in enumerate(names, start=1):
        yield number, "before"
        if name in ("write", "append"):
            yield number, "middle"
    yield len(names), "after"


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.kill)])
def test_a_run_killed_at_any_operation_ends_as_an_undisturbed_one(tmp_path: Path, stride: int) -> None:
    straight, names = undisturbed(tmp_path / "straight", 5)
    assert set(names) >= {"mkdir", "write", "append", "sync", "replace", "remove"}
    points = list(moments(names))
    assert len(points) > 100
    for number, moment in points[::stride]:
        run = tmp_path / f"{number}-{moment}"
        run.mkdir()
        assert killed(lambda run=run, n=number, m=moment: train(run, 5, Dying(n, m)))
        for path in (run / "samples").glob("0*"):  # a report can read them now, so they are complete
            assert path.read_bytes() == straight[f"samples/{path.name}"]
        train(run, 5, Quick())
        assert outcome(run) == straight, (number, moment)


def test_a_resume_that_is_killed_again(tmp_path: Path) -> None:
    straight, _ = undisturbed(tmp_path / "straight", 5)
    chance = random.Random(0)
    for trial in range(10):
        run = tmp_path / str(trial)
        run.mkdir()
        deaths = 0
        for _ in range(100):
            disk = Dying(chance.randint(1, 60), chance.choice(["before", "middle", "after"]))
            if not killed(lambda run=run, disk=disk: train(run, 5, disk)):
                break
            deaths += 1
        assert 0 < deaths < 99
        assert outcome(run) == straight, trial


@pytest.mark.parametrize("again", [False, True], ids=["next", "same"])
def test_a_killed_save_gives_the_old_or_the_new_state(tmp_path: Path, again: bool) -> None:
    """`same`: iteration 2 is saved over a whole, different iteration 2, and nothing older is kept."""

    def prepare(run: Path) -> None:
        run.mkdir()
        for iteration in (1, 2) if again else (1,):
            save_checkpoint(RunLayout(run), iteration, {"x": torch.full((9,), 1.0)}, {"x": 1}, keep=1, disk=Quick())

    def save(run: Path, disk: FileSystemOperations) -> None:
        save_checkpoint(RunLayout(run), 2, {"x": torch.full((9,), 2.0)}, {"x": 2}, keep=1, disk=disk)

    prepare(tmp_path / "count")
    save(tmp_path / "count", disk := Counting())
    renamed = [number for number, name in enumerate(disk.names, start=1) if name == "replace"][1 if again else 0]
    for number, moment in moments(disk.names):
        run = tmp_path / f"{number}-{moment}"
        prepare(run)
        assert killed(lambda run=run, n=number, m=moment: save(run, Dying(n, m)))
        found = newest_checkpoint(RunLayout(run), strict=True)
        assert found and torch.equal(found.tensors()["x"], torch.full((9,), float(found.state["x"])))
        assert found.state["x"] == (2 if number > renamed else 1)  # a new state, once renamed, stays
        save(run, Quick())
        assert (newest_checkpoint(RunLayout(run), strict=True) or found).state == {"x": 2}
        save_checkpoint(RunLayout(run), 3, {}, {}, keep=1, disk=Quick())
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000003"]


def test_kills_at_any_time(tmp_path: Path) -> None:
    iterations = 80
    straight, _ = undisturbed(tmp_path / "straight", iterations)
    run, chance, deaths, trials = tmp_path / "run", random.Random(1), 0, 0
    run.mkdir()
    while trials < 60:
        trials += 1
        child = os.fork()
        if child == 0:
            try:
                train(run, iterations, Quick())
                os._exit(0)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.002, 0.03))
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            break
        deaths += 1
    train(run, iterations, Quick())
    assert outcome(run) == straight
    assert deaths


# Power: only synced bytes are sure to remain.


class File:
    """Bytes as processes see them, and as they are on the platter."""

    def __init__(self) -> None:
        self.live, self.safe = b"", b""


class Folder:
    """Names as processes see them, and as they are on the platter."""

    def __init__(self) -> None:
        self.live: dict[str, File | Folder] = {}
        self.safe: dict[str, File | Folder] = {}


class Powered(Intercepted):
    """Models the files that a cut of the power after `number` operations would leave."""

    def __init__(self, root: Path, number: int) -> None:
        self.root, self.left, self.top = root, number, Folder()

    def at(self, path: Path) -> tuple[Folder, str]:
        folder = self.top
        *parents, name = path.relative_to(self.root).parts
        for parent in parents:
            inner = folder.live[parent]
            assert isinstance(inner, Folder)
            folder = inner
        if name not in folder.live and path.is_file():  # written by a library, such as the weights of a model
            folder.live[name] = file = File()
            file.live = path.read_bytes()
        return folder, name

    def intercept(self, name: str, act: Callable[..., None], *args: Any) -> None:
        if self.left == 0:
            raise PowerCut
        self.left -= 1
        if name == "replace":
            for inner in args[0].rglob("*"):
                self.at(inner)
        path: Path = args[0]
        if path == self.root:
            assert name == "sync"
            act(path)
            self.top.safe = dict(self.top.live)
            return
        folder, key = self.at(path)  # read a library's file before the operation, so that appended bytes count once
        act(*args)
        if name == "mkdir":
            folder.live[key] = Folder()
        elif name == "remove":
            del folder.live[key]
        elif name == "replace":
            target, new = self.at(args[1])
            target.live[new] = folder.live.pop(key)
        elif name == "sync":
            node = folder.live[key]
            node.safe = node.live if isinstance(node, File) else dict(node.live)
        else:
            if name == "write":
                folder.live[key] = File()
            node = folder.live.setdefault(key, File())
            assert isinstance(node, File)
            node.live = node.live[: args[1]] if name == "truncate" else node.live + args[1]


class PowerCut(BaseException):
    """Ends the process."""


def least(file: File) -> bytes:
    return file.safe


def hollow(file: File) -> bytes:
    """The length is on the platter, the content is not."""
    return file.safe + bytes(max(0, len(file.live) - len(file.safe)))


def torn(file: File) -> bytes:
    return file.live[: (len(file.safe) + len(file.live)) // 2]


def most(file: File) -> bytes:
    return file.live


def restore(folder: Folder, where: Path, content: Callable[[File], bytes], names: str) -> None:
    where.mkdir()
    for name, node in getattr(folder, names).items():
        if isinstance(node, File):
            (where / name).write_bytes(content(node))
        else:
            restore(node, where / name, content, names)


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Folder, int]]:
    """For each number of operations before a cut: the disk, and the iteration of the newest save that returned."""
    home = tmp_path_factory.mktemp("cuts")
    _, operations = undisturbed(home / "straight", 5)
    disks = []
    for number in range(len(operations) + 1):
        run = home / f"{number}"
        run.mkdir()
        disk, saved = Powered(run, number), [0]
        try:
            train(run, 5, disk, saved)
        except PowerCut:
            assert number < len(operations)
        disks.append((disk.top, saved[-1]))
    assert sorted({newest for _, newest in disks}) == [0, 2, 4, 5]
    return disks


@pytest.mark.kill
@pytest.mark.parametrize("names", ["safe", "live"])
@pytest.mark.parametrize("content", [least, hollow, torn, most])
def test_a_run_cut_from_power_at_any_operation_ends_as_an_undisturbed_one(
    tmp_path: Path, cuts: list[tuple[Folder, int]], content: Callable[[File], bytes], names: str
) -> None:
    """With none, a part or all of the unsynced names and contents on the platter."""
    straight, _ = undisturbed(tmp_path / "straight", 5)
    for number, (disk, saved) in enumerate(cuts):
        after = tmp_path / f"{number}-after"
        restore(disk, after, content, names)
        newest = newest_checkpoint(RunLayout(after), strict=True)
        assert (newest.iteration if newest else 0) >= saved, number  # a save that returned is never lost
        train(after, 5, Quick())
        assert outcome(after) == straight, number


def test_the_sizes_in_a_checkpoint_count_synced_bytes_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    record = RunLogs(RunLayout(run), disk=(disk := Powered(run, 100)))
    for iteration in (1, 2):
        record.metrics({"iteration": iteration})
        record.timings({"iteration": iteration})
        record.samples(iteration, [{}], {})
        sizes = record.state()["sizes"]
    record.metrics({"iteration": 3})
    restore(disk.top, tmp_path / "after", least, "safe")
    paths = log_paths(RunLayout(tmp_path / "after"))
    assert {name: paths[name].stat().st_size for name in sizes} == sizes
    assert len(list((tmp_path / "after/samples").iterdir())) == 4
