"""The actions of a flow policy as bytes (`Sample.actions`). Imports no torch: reports and pictures read them.

A denoising step is three arrays: the state before it, the state after it, and the mean that the engine computed. A step
of the forward process is two: the noise and the data. The last action of a sample whose states are latents ends with
its decoded picture.
"""

import struct
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["all_states", "decode_action", "decoded_picture", "encode_action", "final_state", "graded_state"]

HEADER = b"flow"
Arrays = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def encode_action(*arrays: Arrays, picture: Pixels | None = None) -> bytes:
    """The arrays of one action, all of one shape, in float32, and a decoded picture [rows, columns, 3].

    >>> decode_action(encode_action(np.zeros(2, "f4"), np.ones(2, "f4"))).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    shape = arrays[0].shape
    head = HEADER + struct.pack(f"<BB{len(shape)}I", len(arrays), len(shape), *shape)
    states = b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays)
    return head + states + (b"" if picture is None else struct.pack("<2I", *picture.shape[:2]) + picture.tobytes())


def decode_action(action: bytes) -> Arrays:
    """The arrays of an action, stacked. ValueError if the bytes are not an action of a flow policy."""
    if not action.startswith(HEADER):
        raise ValueError(
            "these bytes are not an action of a flow policy\ngive an entry of Sample.actions of a flow sample"
        )
    shape, start = layout(action)
    return np.frombuffer(action, "<f4", prod(shape), offset=start).reshape(shape)


def layout(action: bytes) -> tuple[tuple[int, ...], int]:
    """The shape of an action's stacked arrays, and the offset of their first byte."""
    count, dims = struct.unpack_from("<BB", action, len(HEADER))
    sizes = struct.unpack_from(f"<{dims}I", action, len(HEADER) + 2)
    return (count, *sizes), len(HEADER) + 2 + 4 * dims


def decoded_picture(path: Sequence[bytes]) -> Pixels | None:
    """The decoded picture [rows, columns, 3] at the end of a path; None without one."""
    if not path or not path[-1].startswith(HEADER):
        return None
    shape, start = layout(path[-1])
    end = start + 4 * prod(shape)
    if end == len(path[-1]):
        return None
    rows, columns = struct.unpack_from("<2I", path[-1], end)
    return np.frombuffer(path[-1], np.uint8, offset=end + 8).reshape(rows, columns, 3)


def final_state(path: Sequence[bytes]) -> Arrays | None:
    """The state after the last action: a picture or a point. None for a path that is empty or another policy's."""
    if not path or not path[-1].startswith(HEADER):
        return None
    return decode_action(path[-1])[1]


def graded_state(path: Sequence[bytes]) -> Arrays | None:
    """The final state as verifiers see it: of latents the decoded picture [3, rows, columns], from -1 to 1.

    >>> red = np.full((1, 2, 3), (255, 0, 0), np.uint8)
    >>> graded_state([encode_action(np.zeros(4, "f4"), np.zeros(4, "f4"), picture=red)])[:, 0, 1].tolist()
    [1.0, -1.0, -1.0]
    """
    picture = decoded_picture(path)
    if picture is None:
        return final_state(path)
    return (picture.astype(np.float32) / np.float32(127.5) - np.float32(1)).transpose(2, 0, 1)


def all_states(path: Sequence[bytes]) -> Arrays | None:
    """The states of a path, [steps + 1, *state]: the first noise, and the state after each step. None as above.

    >>> noise, middle, data = (np.full(2, x, "f4") for x in (2, 1, 0))
    >>> all_states([encode_action(noise, middle, middle), encode_action(middle, data, data)]).tolist()
    [[2.0, 2.0], [1.0, 1.0], [0.0, 0.0]]
    """
    if final_state(path) is None:
        return None
    actions = [decode_action(action) for action in path]
    return np.stack([actions[0][0], *(action[1] for action in actions)])
