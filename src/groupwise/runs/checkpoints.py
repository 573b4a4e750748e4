"""A run's directory, its lock and its checkpoints."""

import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from groupwise.data import Locked, Storage
from groupwise.runs.disk import DISK, PARKED, Disk, drop, storing, sweep, write_directory

FORMAT = 1
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


def run_directory(root: Path, name: str, clock: Callable[[], float] = time.time, *, disk: Disk = DISK) -> Path:
    """A new directory `root/<name>-<YYYYmmdd-HHMMSS>`, with a number behind it if another start was as quick."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    stem = f"{word}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(clock()))}"
    with storing("a run directory", root if root.is_dir() else Path()):
        for path in (*reversed(root.parents), root):
            if not path.is_dir():
                path.mkdir(exist_ok=True)
                disk.sync(path.parent)
        for number in range(1, 10_000):
            run = root / (stem if number == 1 else f"{stem}-{number}")
            try:
                disk.mkdir(run)
            except FileExistsError:
                continue
            disk.sync(root)
            return run
    raise Storage(f"ten thousand runs are called {stem}", fix=f"move some of them out of {root}")


class RunLock:
    """One process a run: `flock` on `<run>/lock`, held until `close` or the end of the process, however it ends.

    The directory itself is locked as well, so that a lock file deleted by hand lets no second process in. A file
    system that locks no directories (NFS) leaves it at the file.
    """

    def __init__(self, run: Path) -> None:
        self._handles: list[int] = []
        with storing("the run's lock", run):
            file = self._open(run / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            directory = self._open(run, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_directory(directory)
        except BlockingIOError:
            holder = os.pread(file, 400, 0).decode(errors="replace").strip()
            self.close()
            raise Locked(
                f"another process works in {run}",
                evidence=holder or "it has not yet written its name",
                fix="wait for it or stop it; to train beside it start a new run",
            ) from None
        with storing("the run's lock", run):
            os.ftruncate(file, 0)
            os.pwrite(file, f"pid {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
        # A forked worker that outlives us would hold the lock in our name.
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (lock := mine()) and lock.close())

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.pop())

    def _open(self, path: Path, flags: int) -> int:
        self._handles.append(os.open(path, flags | os.O_CLOEXEC, 0o644))
        return self._handles[-1]

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock_directory(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # this file system locks no directories
        pass


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A whole checkpoint: its files have the sizes and hashes of its manifest."""

    path: Path
    iteration: int
    state: dict[str, Any]
    warnings: tuple[str, ...] = ()  # damaged newer ones that were passed over; to be shown

    def tensors(self) -> dict[str, Tensor]:
        try:
            return load_file(self.path / TENSORS)
        except (OSError, SafetensorError) as error:
            raise Storage(f"{self.path / TENSORS} cannot be read", evidence=str(error)) from error


def save_checkpoint(
    run: Path, iteration: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], *, keep: int, disk: Disk = DISK
) -> Path:
    """Write `<run>/checkpoints/<iteration>` whole or not at all, then drop all but the newest `keep`.

    Checkpoints of later iterations go too: a run that saves here has left that future. Raises `Storage`; what was
    there before is then still there. `state` is plain JSON: text as keys, no NaN, no infinity (else ValueError).
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}: at least one checkpoint must stay")
    files = {TENSORS: packed(tensors), STATE: plain_json(state)}
    sums = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    files[MANIFEST] = plain_json({"format": FORMAT, "iteration": iteration, "files": sums})
    home, needed = run / "checkpoints", sum(len(data) for data in files.values())
    target = home / f"{iteration:06d}"
    with storing(f"checkpoint {iteration}", run, needed):
        if not home.is_dir():
            disk.mkdir(home)
            disk.sync(run)
        sweep(home, [path for _, parked, path in stored(home) if parked], disk)
        with write_directory(target, disk) as draft:
            for name, data in files.items():
                disk.write(draft / name, data)
        before = sorted({i for i, _, _ in stored(home) if i <= iteration})
        for i, _, path in stored(home):
            if i not in before[-keep:]:
                drop(path, disk)
    return target


def newest_checkpoint(run: Path, *, strict: bool = False) -> Checkpoint | None:
    """The newest whole checkpoint, or None if none was ever finished. Changes nothing on the disk.

    A damaged one is named in `warnings` and the one before is taken; `strict` raises `Storage` instead. All damaged,
    or written by a newer version: `Storage`. Only the three files of the format are opened, and no links.
    """
    damage: list[str] = []
    for iteration, _, path in reversed(stored(run / "checkpoints")):
        try:
            state = examined(path, iteration)
        except Damaged as problem:
            damage.append(f"{path} is damaged: {problem}")
            if strict:
                raise Storage(damage[0], fix="resume without --strict to use the checkpoint before it") from problem
        else:
            warnings = tuple(f"{line}; using {path.name} instead" for line in damage)
            return Checkpoint(path, iteration, state, warnings)
    if damage:
        fix = "bring the directory back from a copy, or start the run again"
        raise Storage(f"no checkpoint of {run} is whole", evidence="\n".join(damage), fix=fix)
    return None


class Damaged(Exception):
    """What is wrong with one checkpoint. Never leaves this file."""


def examined(path: Path, iteration: int) -> dict[str, Any]:
    """The state of a checkpoint, once its files are known to be those that were written."""
    try:
        manifest = json.loads(regular(path / MANIFEST).read_bytes())
        number = manifest["format"]
        if isinstance(number, int) and number > FORMAT:
            raise Storage(
                f"{path} was written by a newer version of Groupwise",
                evidence=f"format {number}; this version reads up to {FORMAT}",
                fix="upgrade: pip install --upgrade groupwise",
            )
        if number != FORMAT or manifest["iteration"] != iteration or set(manifest["files"]) != {TENSORS, STATE}:
            raise Damaged(f"{MANIFEST} does not describe this checkpoint")
        for name, told in manifest["files"].items():
            size = regular(path / name).stat().st_size
            if size != told["bytes"]:
                raise Damaged(f"{name} has {size} bytes, its manifest says {told['bytes']}")
            with (path / name).open("rb") as file:
                seen = hashlib.file_digest(file, "sha256").hexdigest()
            if seen != told["sha256"]:
                raise Damaged(f"{name} has SHA-256 {seen[:12]}…, its manifest says {str(told['sha256'])[:12]}…")
        return json.loads((path / STATE).read_bytes())
    except OSError as error:
        raise Damaged(f"{error.filename or path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} cannot be understood ({type(error).__name__})") from error


def regular(path: Path) -> Path:
    """The path of a plain file; links, pipes and devices are not opened."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Damaged(f"{path.name} is not a plain file")
    return path


def stored(home: Path) -> list[tuple[int, bool, Path]]:
    """(iteration, parked, path) of the finished checkpoints, the oldest first.

    Only a kill between two renames leaves a parked one; it ranks below the one that replaces it.
    """
    names = [(re.fullmatch(rf"(\d{{6,}})({re.escape(PARKED)})?", path.name), path) for path in home.glob("*")]
    found = [(int(name[1]), bool(name[2]), path) for name, path in names if name and not path.is_symlink()]
    return sorted(found, key=lambda one: (one[0], not one[1]))


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as one safetensors file. Tied ones are copied, because the format refuses shared memory."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return save(apart)


def plain_json(value: Any) -> bytes:
    """JSON that reads back to an equal value: floats exactly, text as keys only, no NaN and no infinity."""
    check_keys(value)
    return json.dumps(value, allow_nan=False).encode()


def check_keys(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{key!r} as a key would read back as text: write pairs instead")
            check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_keys(inner)
