"""Keyed normal numbers: each is a function of a key and a counter."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.models.philox import LOW, Key, key_words, philox

__all__ = ["normals"]

LARGE = 1 << 14
"""Numbers of a state from which it is a large picture: a generator of torch makes its noise."""


def normals(
    key: Key, draws: Sequence[int], streams: Sequence[int], steps: Sequence[int], size: int
) -> Float[Tensor, "rows size"]:
    """`size` normal numbers for each row, fixed by the key, the draw's number, the sample's stream and the step.

    Philox gives four 32-bit words for the counter (draw, stream, step * blocks + block). A word w becomes the quantile
    of (w + 1/2) / 2^32, so a number is within +-6.3. A row of `LARGE` numbers or more, such as the latents of a large
    picture, comes from a generator of torch with a keyed seed, which is eight times as fast.

    >>> a, b = normals((0, 0), draws=[3, 3], streams=[0, 1], steps=[2, 2], size=3)
    >>> torch.equal(b, normals((0, 0), [3], [1], [2], 3)[0]), torch.equal(a, b)
    (True, False)
    """
    if size >= LARGE:
        return torch.stack([generated(key, d, s, t, size) for d, s, t in zip(draws, streams, steps, strict=True)])
    blocks = -(-size // 4)
    if max(steps, default=0) * blocks > LOW - blocks:
        raise ValueError(f"step {max(steps)} of a state of {size} numbers has no keyed random numbers\nuse fewer steps")
    rows = len(draws)
    counter = np.empty((rows, blocks, 4), np.uint32)
    stream = np.array(streams, np.uint64)
    counter[:, :, 0] = np.array(draws, np.uint32)[:, None]
    counter[:, :, 1] = (stream & np.uint64(LOW)).astype(np.uint32)[:, None]
    counter[:, :, 2] = (stream >> np.uint64(32)).astype(np.uint32)[:, None]
    counter[:, :, 3] = np.array(steps, np.uint32)[:, None] * blocks + np.arange(blocks, dtype=np.uint32)
    words = philox(counter.reshape(-1, 4), key_words(key)).reshape(rows, 4 * blocks)[:, :size]
    return torch.special.ndtri(torch.from_numpy((words + 0.5) * 2.0**-32)).float()


def generated(key: Key, draw: int, stream: int, step: int, size: int) -> Float[Tensor, " size"]:
    """`size` normal numbers of a generator whose seed is a hash of the key and the counter. Always made on the CPU."""
    digest = sha256(",".join(map(str, (*map(int, key), draw, stream, step))).encode()).digest()
    return torch.randn(size, generator=torch.Generator().manual_seed(int.from_bytes(digest[:8], "little")))
