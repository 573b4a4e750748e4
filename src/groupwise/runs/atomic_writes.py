"""Atomic writes: a kill, a power cut or a full disk leaves the old content or the new, never a mixture."""

import errno
import glob
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from groupwise.core import Storage, Usage
from groupwise.runs.next_command import recorded_code, resume_command
from groupwise.runs.run_layout import RunLayout

DRAFT, DELETING, PARKED = ".writing-", ".deleting-", ".replaced"
"""Parts of names that mark files and directories as unfinished, as being deleted, or as being replaced."""


class FileSystemOperations:
    """The operations that change the file system. Tests substitute a disk that crashes, loses writes or is full."""

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
        """Force a file's content, or a directory's entries, to the storage device."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file or an empty directory."""
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


DISK = FileSystemOperations()


@contextmanager
def storage_errors(what: str, where: Path, needed: int = 0, *, then: str = "") -> Iterator[None]:
    """A context that turns an OSError into a `Storage` error. Its fix names a remedy and how to continue the run.

    `what` names the written thing in the message, `where` is its directory, `needed` the bytes to write. `then` is the
    advice of a command that only reads the run, in place of continuing it.
    """
    try:
        yield
    except OSError as error:
        evidence = f"{error.strerror or error} ({error.filename or where})"
        remedy = f"make {where} writable, or name another directory"
        if error.errno == errno.ENOENT:  # a file system that makes its own directories, such as /proc
            remedy = f"name another directory: {where} takes no new ones"
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            remedy = f"name another directory: {error.filename or where} is a file, or lies below one"
        if error.errno == errno.ENAMETOOLONG:
            remedy = "use a shorter name"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            evidence += f"; {shutil.disk_usage(where).free / 1e6:.0f} MB free, {needed / 1e6:.1f} MB needed"
            remedy = (
                f"free space on the disk of {where}, or raise its quota (df -h {where}; ulimit -f), "
                f"or set a smaller save.keep"
            )
        fix = f"{remedy}, then {then or _next_command(where)}"
        raise Storage(f"{what} could not be written", evidence=evidence, fix=fix) from error


REPEAT = "repeat the command"
"""The advice of a command that does not train."""


def _next_command(where: Path) -> str:
    """The fix of a storage error: resume the run that `where` belongs to, or repeat the command if there is none."""
    run = next((path for path in (where, where.parent) if RunLayout(path).is_run), None)
    return REPEAT if run is None else f"continue with: {resume_command(run, *recorded_code(run))}"


def check_writable(path: Path, example: str) -> None:
    """Check that a file can be written, and create its folder. `Usage` for a directory, OSError if it is not writable.

    The fix of the error names the `example`.
    """
    if not path.name or os.path.isdir(path):
        raise Usage(f"{path} is a directory", fix=f"name a file: --out {example}")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(path)
    try:
        draft.touch()
    finally:
        with suppress(OSError):
            draft.unlink()


def write_file(path: Path, data: bytes, disk: FileSystemOperations = DISK) -> None:
    """Write a file atomically (see `file_draft`)."""
    with file_draft(path, disk) as draft:
        disk.write(draft, data)


@contextmanager
def file_draft(path: Path, disk: FileSystemOperations = DISK) -> Iterator[Path]:
    """A context that writes a file atomically: its body writes a draft, which is synced and renamed to `path`.

    The draft's name contains the process id, because `report` and `eval` may write while a run does.
    """
    draft = _draft(path)
    try:
        yield draft
        disk.sync(draft)
        disk.replace(draft, path)
    except OSError:
        with suppress(OSError):  # the first error is the one to report
            disk.remove(draft)
        raise
    disk.sync(path.parent)


@contextmanager
def write_directory(path: Path, disk: FileSystemOperations = DISK) -> Iterator[Path]:
    """A context that writes a directory atomically: its body fills a draft, which is synced and renamed to `path`.

    An older directory `path` is parked first, as `<name>.replaced`, and deleted at the end. Between the two renames
    no directory `path` exists; a kill at that point leaves the parked one (see `remove_leftovers`).
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
        with suppress(OSError):  # the first error is the one to report
            remove_leftovers(path.parent, [parked], disk)
        raise
    if parked.exists():
        delete_directory(parked, disk)


def remove_leftovers(home: Path, parked: Iterable[Path], disk: FileSystemOperations = DISK) -> None:
    """Delete the remains of killed writes in `home`: drafts, half-deleted directories, and replaced ones (`parked`).

    A parked directory without a successor is renamed back. The caller must hold the run's lock.
    """
    for path in [*home.glob(f"{DRAFT}*"), *home.glob(f"{DELETING}*")]:
        delete(path, disk)
    for path in parked:
        successor = path.with_name(path.name.removesuffix(PARKED))
        if path.exists() and successor.exists():
            delete_directory(path, disk)
        elif path.exists():
            disk.replace(path, successor)


def remove_dead_drafts(path: Path, disk: FileSystemOperations = DISK) -> None:
    """Delete drafts of `path` whose process does not run on this host: a kill left them."""
    for draft in path.parent.glob(f"{DRAFT}*-{glob.escape(path.name)}"):
        pid = draft.name.removeprefix(DRAFT).partition("-")[0]
        if pid.isdecimal() and not is_running(int(pid)):
            delete(draft, disk)


def is_running(pid: int) -> bool:
    """Whether a process of this number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def delete_directory(path: Path, disk: FileSystemOperations) -> None:
    """Delete a directory. It is renamed first, so that a kill leaves no half-deleted directory under its name."""
    renamed = path.with_name(f"{DELETING}{path.name}")
    disk.replace(path, renamed)
    delete(renamed, disk)


def delete(path: Path, disk: FileSystemOperations) -> None:
    """Delete a file, or a directory with its content."""
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            delete(child, disk)
    disk.remove(path)


def _draft(path: Path) -> Path:
    return path.with_name(f"{DRAFT}{os.getpid()}-{path.name}")
