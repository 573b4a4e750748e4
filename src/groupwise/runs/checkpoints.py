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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from groupwise.core import Locked, Storage
from groupwise.runs.atomic_writes import (
    DISK,
    PARKED,
    FileSystemOperations,
    delete_directory,
    remove_leftovers,
    storage_errors,
    write_directory,
)
from groupwise.runs.run_layout import RunLayout

FORMAT = 2
"""The newest format that is read and written. A checkpoint of one shard has format 1."""
TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


def run_directory(
    root: Path, name: str, clock: Callable[[], float] = time.time, *, disk: FileSystemOperations = DISK
) -> Path:
    """Create a new run directory, `root/<name>-<YYYYmmdd-HHMMSS>`, with a number at the end if the name is taken."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    stem = f"{word}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(clock()))}"
    existing = next((path for path in (root, *root.parents) if path.is_dir()), Path())
    with storage_errors("a run directory", existing):
        for path in (*reversed(root.parents), root):
            if not path.is_dir():
                path.mkdir(exist_ok=True)
                disk.sync(path.parent)
        for i in range(1, 10_000):
            run = root / (stem if i == 1 else f"{stem}-{i}")
            try:
                disk.mkdir(run)
            except FileExistsError:
                continue
            disk.sync(root)
            return run
    raise Storage(f"no free name for a new run: {stem} to {stem}-9999 exist", fix=f"move some of them out of {root}")


class RunLock:
    """Exclusive lock of a run: `flock` on `<run>/lock`, held until `close` or the end of the process.

    The directory is locked as well, so that deleting the lock file admits no second process. File systems that
    cannot lock directories (NFS) lock the file only.
    """

    def __init__(self, layout: RunLayout) -> None:
        self.layout, run = layout, layout.run_directory
        self._handles: list[int] = []
        with storage_errors("the run's lock", run):
            file = self._open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            directory = self._open(run, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_directory(directory)
        except BlockingIOError:
            holder = os.pread(file, 400, 0).decode(errors="replace").strip()
            self.close()
            raise Locked(
                f"another process is using {run}",
                evidence=holder or "the lock file does not name the process yet",
                fix="wait for that process or stop it, or start a new run",
            ) from None
        with storage_errors("the run's lock", run):
            os.ftruncate(file, 0)
            os.pwrite(file, f"pid {os.getpid()} on host {socket.gethostname()}\n".encode(), 0)
        # A forked worker that outlives this process would otherwise keep the lock.
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (lock := reference()) and lock.close())

    @property
    def held(self) -> bool:
        """Whether this process holds the lock."""
        return bool(self._handles)

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
    except OSError:  # this file system cannot lock directories
        pass


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint whose files have the sizes and hashes that its manifest lists."""

    path: Path
    iteration: int
    state: dict[str, Any]
    skipped_checkpoint_warnings: tuple[str, ...] = ()  # one for each damaged newer checkpoint that was skipped

    def tensors(self) -> "CheckpointTensors":
        """The tensors, each of which is read when it is needed. Raises `Storage` if a file cannot be read."""
        try:
            names = json.loads((self.path / MANIFEST).read_bytes())["files"].keys() - {STATE}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(self.path / MANIFEST, error) from error
        return CheckpointTensors([self.path / name for name in shard_names(len(names))])


class CheckpointTensors(Mapping[str, Tensor]):
    """The tensors in the files of a checkpoint. A tensor in several files is the concatenation of its rows."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files: dict[str, list[tuple[Path, Any]]] = {}
        for path in files:
            with _reading(path):
                file = safe_open(path, framework="pt")
                for name in file.keys():  # noqa: SIM118
                    self._files.setdefault(name, []).append((path, file))

    def __getitem__(self, name: str) -> Tensor:
        rows: list[Tensor] = []
        for path, file in self._files[name]:
            with _reading(path):
                rows.append(file.get_tensor(name))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> Storage:
    fix = f"restore the file from a backup, or delete {path.parent} to use the checkpoint before it"
    return Storage(f"{path} cannot be read", evidence=str(error), fix=fix)


def shard_names(count: int) -> list[str]:
    """The names of a checkpoint's tensor files, if `count` ranks hold shards.

    >>> shard_names(1), shard_names(2)
    (['tensors.safetensors'], ['tensors-00001-of-00002.safetensors', 'tensors-00002-of-00002.safetensors'])
    """
    return [TENSORS] if count == 1 else [f"tensors-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


@dataclass(frozen=True, slots=True)
class OtherRankCheckpointShards:
    """The checkpoint shards that other ranks write: their number, and the function that lets them write.

    `write_shards` lets them write into a directory, and returns the size and SHA-256 of each file.
    """

    process_count: int = 0
    write_shards: Callable[[Path], Mapping[str, Mapping[str, Any]]] = lambda directory: {}


def write_shard(directory: Path, rank: int, count: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write the shard of a rank (of `count`). Returns its name, size and SHA-256."""
    name, data = shard_names(count)[rank], tensor_bytes(tensors)
    DISK.write(directory / name, data)
    return {"name": name, **_entry(data)}


def _entry(data: bytes) -> dict[str, Any]:
    """The size and SHA-256 of a file, for the manifest."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def save_checkpoint(
    layout: RunLayout,
    iteration: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int,
    best: Callable[[Sequence[int]], int | None] = lambda iterations: None,
    others: OtherRankCheckpointShards = OtherRankCheckpointShards(),
    disk: FileSystemOperations = DISK,
) -> Path:
    """Write `<run>/checkpoints/<iteration>` atomically, then delete all but the newest `keep` and the `best` one.

    Checkpoints of later iterations are deleted too: the run went back and no longer leads to them. On `Storage` the
    older checkpoints are unchanged. `state` is plain JSON: string keys, no NaN, no infinity (else ValueError). Ranks
    with shards write `others`; `tensors` are then the first rows of each.
    """
    if keep < 1:
        raise ValueError(f"keep, the number of checkpoints to keep, is {keep}: needs keep >= 1")
    files = {shard_names(1 + others.process_count)[0]: tensor_bytes(tensors), STATE: plain_json(state)}
    entries: dict[str, Any] = {name: _entry(data) for name, data in files.items()}
    run, home, target = layout.run_directory, layout.checkpoints, layout.checkpoint(iteration)
    needed = sum(len(data) for data in files.values()) * (1 + others.process_count)
    with storage_errors(f"checkpoint {iteration}", run, needed):
        if not home.is_dir():
            disk.mkdir(home)
            disk.sync(run)
        remove_leftovers(home, [path for _, parked, path in finished_checkpoints(home) if parked], disk)
        with write_directory(target, disk) as draft:
            for name, data in files.items():
                disk.write(draft / name, data)
            entries |= others.write_shards(draft)
            manifest = {"format": FORMAT if others.process_count else 1, "iteration": iteration, "files": entries}
            disk.write(draft / MANIFEST, plain_json(manifest))
        before = sorted({i for i, _, _ in finished_checkpoints(home) if i <= iteration})
        kept = {*before[-keep:], best(before)}
        for i, _, path in finished_checkpoints(home):
            if i not in kept:
                delete_directory(path, disk)
    return target


def newest_checkpoint(layout: RunLayout, *, strict: bool = False) -> Checkpoint | None:
    """The newest undamaged checkpoint, or None if the run has no checkpoint. Changes nothing on disk.

    A damaged checkpoint is skipped and named in `warnings`; with `strict` it raises `Storage`. `Storage` is also
    raised if all are damaged, or if a newer version wrote one. Only the format's three files are opened; links are not.
    """
    damage: list[str] = []
    for iteration, _, path in reversed(finished_checkpoints(layout.checkpoints)):
        try:
            state = verified_state(path, iteration)
        except DamagedCheckpoint as problem:
            damage.append(f"{path} is damaged: {problem}")
            if strict:
                raise Storage(damage[0], fix="resume without --strict to use the previous checkpoint") from problem
        else:
            warnings = tuple(f"{line}; using {path.name} instead" for line in damage)
            return Checkpoint(path, iteration, state, warnings)
    if damage:
        fix = "restore the directory from a backup, or start the run again"
        raise Storage(f"every checkpoint of {layout.run_directory} is damaged", evidence="\n".join(damage), fix=fix)
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify the checkpoint in the directory `path`. Raises `Storage` if it is damaged."""
    try:
        return Checkpoint(path, int(path.name), verified_state(path, int(path.name)))
    except DamagedCheckpoint as problem:
        raise Storage(f"{path} is damaged: {problem}", fix="name another checkpoint") from problem


class DamagedCheckpoint(Exception):
    """Internal exception: a checkpoint is damaged. It never leaves this file."""


def verified_state(path: Path, iteration: int) -> dict[str, Any]:
    """Verify a checkpoint's files against its manifest, and return its state. Raises `DamagedCheckpoint`."""
    try:
        manifest = json.loads(regular_file(path / MANIFEST).read_bytes())
        version = manifest["format"]
        if isinstance(version, int) and version > FORMAT:
            raise Storage(
                f"{path} was written by a newer version of Groupwise",
                evidence=f"format {version}; this version reads up to {FORMAT}",
                fix="upgrade: pip install --upgrade groupwise",
            )
        shards = shard_names(len(manifest["files"]) - 1)
        if (
            version != (FORMAT if len(shards) > 1 else 1)
            or manifest["iteration"] != iteration
            or set(manifest["files"]) != {*shards, STATE}
        ):
            raise DamagedCheckpoint(f"{MANIFEST} does not describe this checkpoint")
        for name, entry in manifest["files"].items():
            size = regular_file(path / name).stat().st_size
            if size != entry["bytes"]:
                raise DamagedCheckpoint(f"{name} has {size} bytes; the manifest lists {entry['bytes']}")
            with (path / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != entry["sha256"]:
                raise DamagedCheckpoint(
                    f"{name} has SHA-256 {digest[:12]}…; the manifest lists {str(entry['sha256'])[:12]}…"
                )
        return json.loads((path / STATE).read_bytes())
    except OSError as error:
        raise DamagedCheckpoint(f"{error.filename or path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be parsed ({type(error).__name__})") from error


def regular_file(path: Path) -> Path:
    """The path, if it is a regular file. Raises `DamagedCheckpoint` for links, pipes and devices, unopened."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DamagedCheckpoint(f"{path.name} is not a regular file")
    return path


def finished_checkpoints(home: Path) -> list[tuple[int, bool, Path]]:
    """(iteration, parked, path) of each complete checkpoint, oldest first. `parked`: a newer copy was replacing it.

    A parked checkpoint is left only by a kill between two renames. It sorts before the checkpoint that replaces it.
    """
    matches = [(re.fullmatch(rf"(\d{{6,}})({re.escape(PARKED)})?", path.name), path) for path in home.glob("*")]
    entries = [(int(match[1]), bool(match[2]), path) for match, path in matches if match and not path.is_symlink()]
    return sorted(entries, key=lambda entry: (entry[0], not entry[1]))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file. Tensors that share memory are copied, because the format refuses them."""
    addresses: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    return save(separate)


def plain_json(value: Any) -> bytes:
    """JSON that reads back equal, with tuples as lists. ValueError for NaN, infinity, and keys that are not strings."""
    check_keys(value)
    return json.dumps(value, allow_nan=False).encode()


def check_keys(value: Any) -> None:
    """ValueError if a mapping at any depth has a key that is not a string."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is not a string; JSON would convert it: use a list of pairs")
            check_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_keys(inner)
