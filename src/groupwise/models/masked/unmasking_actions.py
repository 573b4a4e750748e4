"""The actions of a masked policy as bytes (`Sample.actions`): the knobs of a step, and the commits of cells."""

import struct
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int64

__all__ = ["CellCommit", "DrawnKnobs", "decode_masked", "encode_commits", "encode_knobs"]

KNOBS, COMMIT = b"knob", b"comm"


@dataclass(frozen=True, slots=True, eq=False)
class DrawnKnobs:
    """The knobs of a step as the schedule drew them, before they become a temperature and a share."""

    unmasking_step: int
    knob_values: Float32[np.ndarray, " k"]


@dataclass(frozen=True, slots=True, eq=False)
class CellCommit:
    """The commit of one cell in a step: the canvas before the step, and the temperature of the draw.

    The committed symbol is the sample's token.
    """

    unmasking_step: int
    cell: int
    draw_temperature: float
    canvas_before: Int64[np.ndarray, " cells"]


def encode_knobs(step: int, values: Float32[np.ndarray, " k"]) -> bytes:
    """The action of the schedule in one step."""
    return KNOBS + struct.pack("<I", step) + np.ascontiguousarray(values, "<f4").tobytes()


def encode_commits(
    step: int, cells: Int64[np.ndarray, " n"], temperature: float, canvas: Int64[np.ndarray, " cells"]
) -> list[bytes]:
    """The actions of all commits of one step.

    >>> first, _ = encode_commits(2, np.array([0, 3]), 0.5, np.array([7, 7, 1, 7]))
    >>> action = decode_masked(first)
    >>> action.unmasking_step, action.cell, action.draw_temperature, action.canvas_before.tolist()
    (2, 0, 0.5, [7, 7, 1, 7])
    """
    content = np.ascontiguousarray(canvas, "<u2").tobytes()
    return [COMMIT + struct.pack("<IIf", step, cell, temperature) + content for cell in cells.tolist()]


def decode_masked(action: bytes) -> DrawnKnobs | CellCommit:
    """The action in these bytes. ValueError if they are no action of a masked policy."""
    if action.startswith(KNOBS):
        return DrawnKnobs(struct.unpack_from("<I", action, 4)[0], np.frombuffer(action, "<f4", offset=8))
    if not action.startswith(COMMIT):
        raise ValueError(
            "these bytes are not an action of a masked policy\ngive an entry of Sample.actions of a masked sample"
        )
    step, cell, temperature = struct.unpack_from("<IIf", action, 4)
    return CellCommit(step, cell, temperature, np.frombuffer(action, "<u2", offset=16).astype(np.int64))
