"""Weights in sealed memory of the trainer, which engines on its host map: no file is written, and no hash is needed.

The memory has no name in a file system (`memfd_create`), so none is left behind when processes are killed. Once sealed,
the kernel refuses every change of it: an engine that starts while the learner trains reads one version, whole.
"""

import fcntl
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from groupwise.models.decoder.layer_weights import outline_of
from groupwise.models.return_freed_memory import available_memory
from groupwise.models.safetensors_weights import write_stream

SEALED = "sealed"
"""What a message to an engine has in place of the hash of weights in sealed memory."""
COPIES, SHARE = 3, 0.5
"""Copies of the weights at a time, with that which is being written, and the part of the available memory for them."""


class SealedMemory:
    """Memory with the weights of one version. After `release`, it is freed once no engine maps it."""

    def __init__(self, version: int, weights: Mapping[str, Tensor]) -> None:
        descriptor = os.memfd_create(f"groupwise-weights-{version:06d}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.release = weakref.finalize(self, os.close, descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            write_stream(file, outline_of(weights), weights.__getitem__)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _seals() | fcntl.F_SEAL_SEAL)
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        """A path for processes of this user on this host."""


def can_seal(size: int) -> bool:
    """Whether this system has sealed memory, with room for weights of `size` bytes."""
    sealing = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
    return sealing and COPIES * size <= SHARE * available_memory()


def is_sealed(file: BinaryIO) -> bool:
    """Whether an open file is memory that no process can change."""
    try:
        return fcntl.fcntl(file.fileno(), fcntl.F_GET_SEALS) & _seals() == _seals()
    except OSError:  # a file of a disk
        return False


def _seals() -> int:
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
