"""Changes to a run's directory that a kill, a power cut or a full disk leaves whole or undone."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from groupwise.data import Storage

ABOUT, RECIPE = "run.json", "recipe.toml"
"""The files of a run's start. The second is written last: it makes a directory a run."""
DRAFT, DELETING, PARKED = ".writing-", ".deleting-", ".replaced"
"""Marks in the names of what is not finished, what is being deleted, and what is about to be replaced."""


class Disk:
    """The few operations that change the file system. Tests pass one that dies, forgets or is full."""

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def sync(self, path: Path) -> None:
        """Content of a file, or the names in a directory, reach the platter."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        """A file, or an empty directory."""
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


DISK = Disk()


@contextmanager
def storing(what: str, where: Path, needed: int = 0) -> Iterator[None]:
    """Turn the system's refusals into `Storage` errors that say how to go on."""
    try:
        yield
    except OSError as error:
        evidence = f"{error.strerror or error} ({error.filename or where})"
        remedy = f"see that {where} can be written"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            evidence += f"; {shutil.disk_usage(where).free / 1e6:.0f} MB free, {needed / 1e6:.1f} MB needed"
            remedy = (
                f"free space on the disk of {where}, or raise its quota (df -h {where}; ulimit -f), "
                f"or keep fewer checkpoints"
            )
        fix = f"{remedy}, then {_next_command(where)}"
        raise Storage(f"{what} could not be written", evidence=evidence, fix=fix) from error


def _next_command(where: Path) -> str:
    """How to go on: resume the run that `where` belongs to, or start again if there is no run yet."""
    run = next((path for path in (where, where.parent) if (path / RECIPE).is_file()), None)
    return "repeat the command" if run is None else f"go on with: groupwise resume {run}"


def write_file(path: Path, data: bytes, disk: Disk = DISK) -> None:
    """Write a file whole or not at all: to a draft, which is synced and renamed. The directory is synced, too.

    The draft's name holds the process id, because `report` and `eval` may write beside a run.
    """
    draft = _draft(path)
    try:
        disk.write(draft, data)
        disk.sync(draft)
        disk.replace(draft, path)
    except OSError:
        with suppress(OSError):  # the first refusal is the one to report
            disk.remove(draft)
        raise
    disk.sync(path.parent)


@contextmanager
def write_directory(path: Path, disk: Disk = DISK) -> Iterator[Path]:
    """Write a directory whole or not at all: the body fills a draft, which is synced and then takes the name `path`.

    An older directory of that name is parked first, as `<name>.replaced`, and dropped at the end. For the instant
    between the two renames there is no directory `path`; a kill in it leaves the parked one (see `sweep`).
    """
    draft, parked = _draft(path), path.with_name(path.name + PARKED)
    disk.mkdir(draft)
    try:
        yield draft
        for inner in (*sorted(draft.rglob("*")), draft):
            disk.sync(inner)
        if path.exists():
            disk.replace(path, parked)
        disk.replace(draft, path)
        disk.sync(path.parent)
    except Exception:
        with suppress(OSError):  # the first refusal is the one to report
            sweep(path.parent, [parked], disk)
        raise
    if parked.exists():
        drop(parked, disk)


def sweep(home: Path, parked: Iterable[Path], disk: Disk = DISK) -> None:
    """Clear away what killed writes left in `home`: drafts, half-deleted directories, and each of `parked`.

    A parked directory without a successor gets its name back. Only for the holder of the run's lock.
    """
    for path in [*home.glob(f"{DRAFT}*"), *home.glob(f"{DELETING}*")]:
        clear(path, disk)
    for path in parked:
        successor = path.with_name(path.name.removesuffix(PARKED))
        if path.exists() and successor.exists():
            drop(path, disk)
        elif path.exists():
            disk.replace(path, successor)


def drop(path: Path, disk: Disk) -> None:
    """Take a directory out of sight in one operation, then delete it."""
    away = path.with_name(f"{DELETING}{path.name}")
    disk.replace(path, away)
    clear(away, disk)


def clear(path: Path, disk: Disk) -> None:
    """Delete a file, or a directory with all that it holds."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            clear(child, disk)
    disk.remove(path)


def _draft(path: Path) -> Path:
    return path.with_name(f"{DRAFT}{os.getpid()}-{path.name}")
