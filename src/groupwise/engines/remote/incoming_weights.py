"""Receives weights that a trainer on another host sends in parts: a file of this host, for all of its engines.

The file gets its name, its SHA-256, once all bytes are here and have this hash. So an engine finds the weights that
another engine of this user on this host has received, and a host needs each version once.
"""

import asyncio
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import BinaryIO

from groupwise.core import Usage
from groupwise.engines.remote.weights_file import HERE, PREFIX, WeightsFilesDirectory, damaged, weights_errors

__all__ = ["IncomingWeightsStore"]

RECEIVED = "received-"
"""The begin of the name of a file with complete weights."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Linux: a random text that is new at each start of the host."""


class IncomingWeightsStore:
    """Weights from other hosts: files of at most `largest` bytes. This engine keeps the newest that it has received.

    `host` is equal for the engines that find each other's files: those of one user and directory on one host.
    """

    def __init__(self, exchange: WeightsFilesDirectory, largest: int) -> None:
        self.directory, self.largest = exchange.path, largest
        self.host = host_of(self.directory.parent)
        self._exchange = exchange
        self._count = 0

    def begin(self, sha256: str, size: int) -> "IncomingWeights":
        """A new upload, in place of the weights before. `Usage` if it is larger than the model's weights can be."""
        if size > self.largest:
            evidence = f"{size} bytes; this model has at most {self.largest}"
            fix = "start the engine with the run's model and machine.dtype: groupwise serve MODEL"
            raise Usage("these are not the weights of this engine's model", evidence=evidence, fix=fix)
        self.clear()
        with weights_errors(self.directory.parent, size, HERE):
            return IncomingWeights(self._new("upload"), sha256, size)

    def find(self, sha256: str) -> Path | None:
        """A new link to the weights with this hash, if an engine of this host has received them; the caller deletes it.

        The link keeps the bytes while they are read, whatever the other engine does. The caller compares the hash.
        """
        return self._link(sha256, self.directory.parent.glob(f"{PREFIX}*"))

    def own(self, sha256: str) -> Path | None:
        """As `find`, but only weights that this engine has received: another one's may be those of another run."""
        return self._link(sha256, [self.directory])

    def _link(self, sha256: str, directories: Iterable[Path]) -> Path | None:
        link = self._new("loading")
        for directory in directories:
            with suppress(OSError):
                os.link(directory / f"{RECEIVED}{sha256}.safetensors", link, follow_symlinks=False)
                if self._is_ours(link.lstat()):
                    return link
                link.unlink()
        return None

    def clear(self) -> None:
        """Delete the weights that this engine has received. Engines that read them go on."""
        for path in self.directory.glob(f"{RECEIVED}*"):
            path.unlink(missing_ok=True)

    def _is_ours(self, status: os.stat_result) -> bool:
        """Whether a file is a regular one of this user, and no larger than the weights."""
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_size <= self.largest

    def _new(self, kind: str) -> Path:
        self._count += 1
        return self.directory / f"{kind}-{self._count:06d}.safetensors"


def host_of(directory: Path) -> str:
    """The hash of this start of the host, this user and a directory; empty if the system does not number its starts.

    A container with another directory under the same name has another one.
    """
    try:
        boot = BOOT.read_text()
    except OSError:
        return ""
    place = directory.stat()
    return new_sha256(f"{boot} {os.getuid()} {place.st_dev} {place.st_ino}".encode()).hexdigest()


class IncomingWeights:
    """One file, of which `arrived` of `size` bytes are here. `close` deletes it unless it is complete."""

    def __init__(self, path: Path, sha256: str, size: int) -> None:
        self.path, self.sha256, self.size, self.arrived = path, sha256, size, 0
        self._file: BinaryIO = path.open("xb")
        self._hash = new_sha256()
        self._turn = asyncio.Lock()

    async def add(self, offset: int, part: bytes) -> None:
        """Append the part that begins at `offset`; the last one completes the file.

        Several may be on the way. ValueError if it does not follow the parts before it, `Storage` for another hash.
        """
        if offset != self.arrived or not 0 < len(part) <= self.size - offset:
            raise ValueError(f"a part of {len(part)} bytes at {offset}: {self.arrived} of {self.size} bytes are here")
        self.arrived += len(part)
        async with self._turn:
            with weights_errors(self.path.parent.parent, self.size, HERE):
                await asyncio.to_thread(self._write, part, last=offset + len(part) == self.size)

    def close(self) -> None:
        """Delete the file if it is not complete."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, part: bytes, *, last: bool) -> None:
        self._file.write(part)
        self._file.flush()
        self._hash.update(part)
        if last:
            self._file.close()
            if (digest := self._hash.hexdigest()) != self.sha256:
                raise damaged("the received file", digest, self.sha256)
            self.path.rename(self.path.with_name(f"{RECEIVED}{self.sha256}.safetensors"))
