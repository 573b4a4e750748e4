"""Weights as one safetensors file, and the directory in which a run's engines find it."""

import errno
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from groupwise.core import Storage, open_regular
from groupwise.engines.remote.gpu_weights import ON_GPU, GpuWeights
from groupwise.engines.remote.shared_memory_weights import SEALED, SealedMemory, is_sealed
from groupwise.models.decoder.layer_weights import outline_of
from groupwise.models.safetensors_weights import write_stream
from groupwise.runs.atomic_writes import DISK, FileSystemOperations, file_draft

__all__ = ["WeightsFile", "WeightsFilesDirectory", "read_weights", "write_weights"]

HEADER = 1 << 24
"""The most bytes of a weights file beyond its tensors."""
PREFIX = "groupwise-engines-"
"""The begin of an exchange directory's name."""
COPIES = 2
"""Weights files at a time: the new one is written while engines may read the one before."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ELSEWHERE = "name another one: --engine-exchange DIR"
HERE = "name another one in the environment variable TMPDIR"
"""How to choose another directory for the weights: for a run, and for an engine on another host."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The weights of one version in a file, with its SHA-256; or `in_memory_weights`, with `SEALED` or `ON_GPU` in its
    place.
    """

    version: int
    path: Path
    sha256: str
    in_memory_weights: SealedMemory | GpuWeights | None = None

    def remove(self) -> None:
        """Delete the file, or free the memory. No engine may load these weights afterwards."""
        if self.in_memory_weights is None:
            self.path.unlink(missing_ok=True)
        else:
            self.in_memory_weights.release()


def write_weights(
    directory: Path, version: int, weights: Mapping[str, Tensor], disk: FileSystemOperations = DISK
) -> WeightsFile:
    """Write weights atomically: an engine sees the whole file or none. `Storage` if they do not fit on the disk."""
    path = directory / f"weights-{version:06d}.safetensors"
    outline = outline_of(weights)
    with weights_errors(directory.parent, sum(x.nbytes for x in outline.values())):
        with file_draft(path, disk) as draft, draft.open("wb") as file:
            write_stream(file, outline, weights.__getitem__)
        return WeightsFile(version, path, _sha256(path))


def seal_weights(version: int, weights: Mapping[str, Tensor]) -> WeightsFile:
    """Weights in sealed memory, for engines on this host."""
    memory = SealedMemory(version, weights)
    return WeightsFile(version, memory.path, SEALED, memory)


def keep_on_gpu(version: int, weights: Mapping[str, Tensor]) -> WeightsFile:
    """A copy of weights on their GPU, for vLLM engines."""
    return WeightsFile(version, Path(f"weights {version} on the GPU"), ON_GPU, GpuWeights(weights))


@contextmanager
def weights_errors(parent: Path, needed: int = 0, elsewhere: str = ELSEWHERE) -> Iterator[None]:
    """A context that turns an OSError in a directory for weights into a `Storage` error. Its fix names the directory.

    `parent` has the directories of all runs, since one run's own is gone when its user reads the error.
    """
    try:
        yield
    except OSError as error:
        evidence = f"{error.strerror or error} ({parent})"
        fix = f"make {parent} writable, or {elsewhere}"
        if error.errno in (errno.ENOENT, errno.ENOTDIR) and not parent.is_dir():
            fix = f"make the directory {parent}, or {elsewhere}"
        if error.errno in NO_SPACE:
            evidence += f"; {_megabytes(shutil.disk_usage(parent).free)} free, {_megabytes(needed)} needed"
            fix = f"free space in {parent} for {COPIES} copies of the weights, or {elsewhere}"
        raise Storage("the weights for the engines could not be written", evidence=evidence, fix=fix) from error


def state_bytes(model: nn.Module) -> int:
    """The bytes of a model's weights."""
    return sum(x.numel() * x.element_size() for x in model.state_dict().values())


def most_file_bytes(model: nn.Module) -> int:
    """The most bytes of a file with a model's weights."""
    return state_bytes(model) + HEADER


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def read_weights(path: Path, sha256: str) -> dict[str, Tensor]:
    """The tensors of a weights file. `Storage` if it cannot be read, or if its hash differs.

    With `SEALED` as the hash, those in sealed memory, which they map.
    """
    with _reading(path):
        if sha256 == SEALED:
            return _read_sealed(path)
        check_weights(path, sha256)
        return load_file(path)


def check_weights(path: Path, sha256: str) -> None:
    """`Storage` if a weights file cannot be read, or if its hash differs."""
    with _reading(path):
        if (digest := _sha256(path)) != sha256:
            raise damaged(str(path), digest, sha256)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        fix = "check the disk of that directory; --engine-exchange DIR names another one"
        raise Storage(f"the weights in {path} cannot be read", evidence=str(error), fix=fix) from error


def damaged(name: str, digest: str, expected: str) -> Storage:
    """The error for weights with another SHA-256 than expected."""
    evidence = f"SHA-256 is {digest[:12]}…; it was {expected[:12]}…"
    return Storage(f"{name} is not the file that was written", evidence=evidence, fix="load the weights again")


def _read_sealed(path: Path) -> dict[str, Tensor]:
    with open_regular(path) as file:
        if not is_sealed(file):
            raise Storage(f"{path} is not sealed memory", evidence="it may change", fix="load the weights again")
        return load_file(f"/proc/self/fd/{file.fileno()}")


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return file_digest(file, "sha256").hexdigest()


class WeightsFilesDirectory:
    """A new directory for weights files that only this user can read. `close` or the process's end removes it.

    The directory of a killed process is removed by the next `WeightsFilesDirectory` in the same directory: its lock is
    free.
    """

    engine_log_directory: Path | None = None
    """The folder for the output of the run's engines, once the run has one; before, it is this directory."""

    def __init__(self, parent: Path, elsewhere: str = ELSEWHERE) -> None:
        with weights_errors(parent, elsewhere=elsewhere):
            remove_abandoned(parent)
            self._hold(*_locked_directory(parent))

    def check_room(self, size: int) -> None:
        """`Storage` if `COPIES` weights files of this size do not fit."""
        parent, needed = self.path.parent, COPIES * size
        if (free := shutil.disk_usage(parent).free) < needed:
            raise Storage(
                f"the weights for the engines do not fit in {parent}",
                evidence=f"{_megabytes(free)} free, {_megabytes(needed)} needed: {COPIES} copies of the weights",
                fix=f"free space there, or {ELSEWHERE}",
            )

    def _hold(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock
        self._end = weakref.finalize(self, _remove, path, lock)

    def hand_on(self) -> tuple[Path, int]:
        """Keep the directory for the program that replaces this one: its path and lock, for `handed` there."""
        os.set_inheritable(self._lock, True)
        self._end.detach()
        return self.path, self._lock

    @classmethod
    def handed(cls, path: Path, lock: int) -> "WeightsFilesDirectory":
        """The directory that the program before this one has handed on."""
        os.set_inheritable(lock, False)
        exchange = cls.__new__(cls)
        exchange._hold(path, lock)
        return exchange

    def close(self) -> None:
        """Remove the directory with its files."""
        self._end()


def _locked_directory(parent: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that holds its lock. Another process may remove it until it is locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _lock(lock) and path.exists():
            return path, lock
        os.close(lock)


def remove_abandoned(parent: Path) -> None:
    """Remove the exchange directories of this user's processes that were killed."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            if os.fstat(lock).st_uid == os.getuid() and _lock(lock):
                shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(descriptor: int) -> bool:
    """Whether this process now holds the directory's lock. The kernel frees it at the process's end."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
