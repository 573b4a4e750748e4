"""Receives weights that a trainer on another host sends in parts, as a file of this host."""

import asyncio
from pathlib import Path
from typing import BinaryIO

from groupwise.core import Usage
from groupwise.engines.remote.weights_file import HERE, WeightsFilesDirectory, weights_errors

__all__ = ["IncomingWeightsStore"]


class IncomingWeightsStore:
    """Where weights from other hosts are kept until they are loaded: files of at most `largest` bytes."""

    def __init__(self, exchange: WeightsFilesDirectory, largest: int) -> None:
        self.directory, self.largest = exchange.path, largest
        self._exchange = exchange
        self._count = 0

    def begin(self, sha256: str, size: int) -> "IncomingWeights":
        """A new upload. `Usage` if it is larger than the weights of the model can be."""
        if size > self.largest:
            evidence = f"{size} bytes; this model has at most {self.largest}"
            fix = "start the engine with the run's model and machine.dtype: groupwise serve MODEL"
            raise Usage("these are not the weights of this engine's model", evidence=evidence, fix=fix)
        self._count += 1
        with weights_errors(self.directory.parent, size, HERE):
            return IncomingWeights(self.directory / f"upload-{self._count:06d}.safetensors", sha256, size)


class IncomingWeights:
    """One file, of which `arrived` of `size` bytes are here. `close` deletes it."""

    def __init__(self, path: Path, sha256: str, size: int) -> None:
        self.path, self.sha256, self.size, self.arrived = path, sha256, size, 0
        self._file: BinaryIO = path.open("xb")

    async def add(self, offset: int, part: bytes) -> None:
        """Append the part that begins at `offset`. ValueError if it does not follow the parts before it."""
        if offset != self.arrived or not 0 < len(part) <= self.size - offset:
            raise ValueError(f"a part of {len(part)} bytes at {offset}: {self.arrived} of {self.size} bytes are here")
        self.arrived += len(part)
        with weights_errors(self.path.parent.parent, self.size, HERE):
            await asyncio.to_thread(self._write, part)

    @property
    def complete(self) -> bool:
        """Whether all bytes are here."""
        return self.arrived == self.size

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _write(self, part: bytes) -> None:
        self._file.write(part)
        self._file.flush()
