"""Counter-based random numbers: each is a function of a key and a counter, so no generator has a state.

Philox4x32-10 (Salmon et al., SC 2011) maps a key of two 32-bit words and a counter of four to four random words. There
is no state to save, and no number depends on how many were drawn before it.
"""

import hashlib
import random
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Key", "RandomPurpose", "keyed_random", "lineage", "permutation", "philox", "picks", "uniform"]

LOW = 0xFFFFFFFF
Key = tuple[int, int]  # (seed, purpose)
Uint32Array = NDArray[np.uint32]
Numbers = int | Sequence[int] | NDArray[Any]


class RandomPurpose(IntEnum):
    """The use of a random number: equal counters with different purposes give unrelated numbers."""

    SAMPLE = 0
    SHUFFLE = 1
    CURRICULUM = 2
    STRATEGY = 3
    EVALUATE = 4
    TASK = 5
    INIT = 6
    BOOTSTRAP = 7
    DEMONSTRATE = 8


def philox(counter: Uint32Array, key: Uint32Array) -> Uint32Array:
    """Four random words for each row of four counter words. Ten rounds, as in Random123.

    >>> [hex(w) for w in philox(np.zeros((1, 4), np.uint32), np.zeros(2, np.uint32))[0]]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter.astype(np.uint64).T
    k0, k1 = (int(k) for k in key)
    for _ in range(10):
        even, odd = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (odd >> np.uint64(32)) ^ c1 ^ np.uint64(k0), odd & np.uint64(LOW)
        c2, c3 = (even >> np.uint64(32)) ^ c3 ^ np.uint64(k1), even & np.uint64(LOW)
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return np.stack([c0, c1, c2, c3], 1).astype(np.uint32)


def key_words(key: Key) -> Uint32Array:
    """The key of Philox: the seed's low word, and its high word XOR the purpose spread over 32 bits.

    Purposes under one seed have different keys, and so have all seeds below 2**32. ValueError beyond 64 bits.
    """
    seed, purpose = key
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}: it must be at least 0 and below 2**64")
    return np.array([seed & LOW, (seed >> 32) ^ (purpose * 0x9E3779B1 & LOW)], np.uint32)


def uniform(key: Key, draw: Numbers, stream: Numbers, t: Numbers) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), each fixed by the key, the draw's number, the sample's stream and the token position.

    The counter is (draw, low word of stream, high word of stream, t): draw and t below 2**32, stream below 2**64.
    The i-th sample of a draw has stream i; a forked sample has the stream `lineage`.

    >>> uniform((0, RandomPurpose.SAMPLE), draw=3, stream=[0, 1], t=0).round(4)
    array([0.7874, 0.6276])
    """
    d, s, t = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.uint64)) for x in (draw, stream, t)))
    if (d > LOW).any() or (t > LOW).any():
        raise ValueError("draw (the number of a drawn prompt) and t (a token position) must be below 2**32")
    counter = np.stack([d, s & np.uint64(LOW), s >> np.uint64(32), t], 1).astype(np.uint32)
    words = philox(counter, key_words(key)).astype(np.uint64)
    return ((words[:, 0] << np.uint64(21)) | (words[:, 1] >> np.uint64(11))).astype(np.float64) * 2.0**-53


def lineage(stream: tuple[int, ...]) -> int:
    """A sample's stream as one number: `(i,)` is i; a longer tuple (of a fork) is a hash with the highest bit set.

    >>> lineage((5,)), lineage((5, 0)) == lineage((5, 1))
    (5, False)
    """
    if len(stream) == 1:
        return stream[0]
    return int.from_bytes(_digest(*stream)[:8], "little") | 1 << 63


def permutation(key: Key, draw: int, stream: int, n: int) -> NDArray[np.int64]:
    """A random permutation of `range(n)`: the ranks of n uniform numbers.

    >>> sorted(permutation((0, RandomPurpose.SHUFFLE), 0, 0, 4).tolist())
    [0, 1, 2, 3]
    """
    return np.argsort(uniform(key, draw, stream, np.arange(n)), kind="stable")


def picks(key: Key, draw: Numbers, n: int, below: int) -> NDArray[np.int64]:
    """`n` random integers below `below` for each draw number, as rows: `(word * below) >> 32`, four words per counter.

    The counter is (draw, 0, 0, index // 4). Each probability is off by less than 2**-32, so keep `below` small.

    >>> picks((0, RandomPurpose.BOOTSTRAP), [0, 1], n=5, below=10).tolist()
    [[0, 5, 3, 4, 1], [6, 7, 7, 6, 8]]
    """
    draws, blocks = np.atleast_1d(np.asarray(draw, np.uint32)), -(-n // 4)
    counter = np.zeros((len(draws) * blocks, 4), np.uint32)
    counter[:, 0], counter[:, 3] = np.repeat(draws, blocks), np.tile(np.arange(blocks, dtype=np.uint32), len(draws))
    words = philox(counter, key_words(key)).reshape(len(draws), 4 * blocks)[:, :n].astype(np.uint64)
    return ((words * np.uint64(below)) >> np.uint64(32)).astype(np.int64)


def keyed_random(key: Key, *counter: int) -> random.Random:
    """A `random.Random` for code that needs one, such as a strategy; equal for an equal key and counter."""
    return random.Random(int.from_bytes(_digest(*key, *counter), "little"))


def _digest(*numbers: int) -> bytes:
    return hashlib.sha256(",".join(str(int(n)) for n in numbers).encode()).digest()
