"""The actions of a flow policy as bytes (`Sample.path`). Imports no torch, so that reports and pictures can read them.

A denoising step is three arrays: the state before it, the state after it, and the mean that the engine computed. A step
of the forward process is two: the noise and the data.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["all_states", "decode_action", "encode_action", "final_state"]

HEADER = b"flow"
Arrays = NDArray[np.float32]


def encode_action(*arrays: Arrays) -> bytes:
    """The arrays of one action, all of one shape, in float32.

    >>> decode_action(encode_action(np.zeros(2, "f4"), np.ones(2, "f4"))).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    shape = arrays[0].shape
    head = HEADER + struct.pack(f"<BB{len(shape)}I", len(arrays), len(shape), *shape)
    return head + b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays)


def decode_action(action: bytes) -> Arrays:
    """The arrays of an action, stacked. ValueError if the bytes are not an action of a flow policy."""
    if not action.startswith(HEADER):
        raise ValueError(
            "these bytes are not an action of a flow policy\ngive an entry of Sample.path of a flow sample"
        )
    count, dims = struct.unpack_from("<BB", action, len(HEADER))
    shape = struct.unpack_from(f"<{dims}I", action, len(HEADER) + 2)
    return np.frombuffer(action, "<f4", offset=len(HEADER) + 2 + 4 * dims).reshape(count, *shape)


def final_state(path: Sequence[bytes]) -> Arrays | None:
    """The state after the last action: a picture or a point. None for a path that is empty or another policy's."""
    if not path or not path[-1].startswith(HEADER):
        return None
    return decode_action(path[-1])[1]


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
