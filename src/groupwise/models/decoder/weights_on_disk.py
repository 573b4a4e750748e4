"""The weights of a decoder that stay in its files until rows of them are needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.models.safetensors_weights import opened, refuse_nonfinite

__all__ = ["RowsOnDisk", "WeightsOnDisk"]

ADAPTED = "base_layer."
"""What peft adds to the names of the weights under an adapter."""
SAMPLED = 64
"""The first numbers of each tensor that `WeightsOnDisk.digest` hashes: they tell fine-tuned models apart."""


@dataclass(frozen=True, slots=True)
class RowsOnDisk:
    """A matrix or a vector in a safetensors file, of which rows are read in a dtype."""

    file: Path
    name: str
    dtype: torch.dtype

    def rows(self, first: int, count: int) -> Tensor:
        """Read `count` rows from row `first` on. BadData for NaN or infinity."""
        with opened(self.file) as content:
            rows = content.get_slice(self.name)[first : first + count].to(self.dtype)
        refuse_nonfinite(self.file, self.name, rows)
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class WeightsOnDisk:
    """The tensors of a decoder's files, by its parameters' names. `device` is that on which it would have them."""

    tensors: Mapping[str, RowsOnDisk]
    device: torch.device

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightsOnDisk":
        return self

    def stored(self, name: str) -> RowsOnDisk | None:
        """The stored tensor of a decoder's parameter, also of one under an adapter; None for one that is not stored."""
        return self.tensors.get(name.replace(ADAPTED, ""))

    def whole(self, name: str, rows: int) -> Tensor:
        """Read all `rows` of a parameter that is stored. BadData for NaN or infinity."""
        stored = self.stored(name)
        assert stored is not None, f"{name} is in no file"
        return stored.rows(0, rows)

    def digest(self) -> bytes:
        """A hash of the tensors' names and first numbers: models that were trained apart have different ones."""
        whole = sha256()
        for name, tensor in sorted(self.tensors.items()):
            whole.update(name.encode())
            whole.update(tensor.rows(0, 1).flatten()[:SAMPLED].double().numpy().tobytes())
        return whole.digest()
