"""Moments of AdamW in 8 bits: each block of a row has one scale, each number the nearest entry of a fixed table.

8-bit optimizers, arXiv:2110.02861: block-wise dynamic quantisation, sections 2.1 and 2.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

BLOCK = 256
"""The entries that share a scale. A block is within a row, so that the rows of a shard have the bits of the matrix."""
LARGEST_EXPONENT = 7
"""The table's entries span this many powers of ten."""


@cache
def table(*, signed: bool) -> tuple[float, ...]:
    """The 256 numbers of the dynamic data type, from -1 or 0 to 1: more of them near a power of ten's upper end.

    >>> len(table(signed=True)), len(table(signed=False)), round(1e9 * table(signed=False)[1]), table(signed=True)[-1]
    (256, 256, 325, 1.0)
    """
    numbers = [0.0, 1.0]
    for i in range(LARGEST_EXPONENT):
        count = 2 ** (i if signed else i + 1)
        means = [(0.1 + 0.9 * (j + 0.5) / count) * 10.0 ** (i + 1 - LARGEST_EXPONENT) for j in range(count)]
        numbers += [*means, *(-x for x in means)] if signed else means
    return tuple(sorted(numbers))


@cache
def on_device(device: torch.device, *, signed: bool) -> tuple[Float[Tensor, "256"], Float[Tensor, "255"]]:
    """The table on a device, and the numbers half way between its entries."""
    values = torch.tensor(table(signed=signed), device=device)
    return values, (values[1:] + values[:-1]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Moment8bit:
    """One moment of a matrix: the index of each entry in the table, and the largest magnitude of each block.

    >>> moment = Moment8bit.zeros_like(torch.ones(2, 3), signed=True)
    >>> moment.write(slice(0, 2), torch.tensor([[1.0, -0.5, 0.0], [3.0, 3.0, 3.0]]))
    >>> moment.read(slice(0, 2))
    tensor([[ 1.0000, -0.5008,  0.0000],
            [ 3.0000,  3.0000,  3.0000]])
    """

    codes: UInt8[Tensor, "rows width"]
    scales: Float[Tensor, "rows blocks"]
    signed: bool

    @classmethod
    def zeros_like(cls, matrix: Tensor, *, signed: bool, device: torch.device | None = None) -> "Moment8bit":
        """A moment of zeros for a matrix. Its first dimension are the rows; later ones are one row."""
        rows, width = len(matrix), matrix[:1].numel() if len(matrix) else matrix.shape[1:].numel()
        place = matrix.device if device is None else device
        codes = torch.full((rows, width), table(signed=signed).index(0.0), dtype=torch.uint8, device=place)
        return cls(codes, torch.zeros(rows, -(-width // BLOCK), device=place), signed)

    def to(self, device: torch.device) -> "Moment8bit":
        """The moment on a device."""
        return Moment8bit(self.codes.to(device), self.scales.to(device), self.signed)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of a checkpoint, by the end of their names."""
        return {"": self.codes, ".scale": self.scales}

    def read(self, rows: slice) -> Float[Tensor, "rows width"]:
        """Some rows in float32."""
        codes = self.codes[rows]
        values, _ = on_device(codes.device, signed=self.signed)
        scales = self.scales[rows].repeat_interleave(BLOCK, 1)[:, : codes.shape[1]]
        return values.index_select(0, codes.flatten().int()).view(codes.shape) * scales

    def write(self, rows: slice, x: Float[Tensor, "rows width"]) -> None:
        """Replace some rows by the nearest numbers that 8 bits and a scale hold."""
        width = x.shape[1]
        blocks = torch.nn.functional.pad(x, (0, -width % BLOCK)).unflatten(1, (-1, BLOCK))
        scales = blocks.abs().amax(-1)
        near = blocks / torch.where(scales > 0, scales, 1)[..., None]
        _, between = on_device(x.device, signed=self.signed)
        self.codes[rows] = torch.bucketize(near, between).flatten(1)[:, :width].to(torch.uint8)
        self.scales[rows] = scales
