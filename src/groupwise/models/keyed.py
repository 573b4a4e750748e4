"""Random numbers without a generator: a number is a function of its key and of where it is used.

Philox4x32-10 (Salmon et al., SC 2011) turns a key of two 32-bit words and a counter of four into four random words.
Nothing is consumed, so nothing has to be saved, and no draw depends on how many others were made before it.
"""

import hashlib
import random
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Key", "Purpose", "keyed_random", "lineage", "permutation", "philox", "picks", "uniform"]

LOW = 0xFFFFFFFF
Key = tuple[int, int]  # (seed, purpose)
Words = NDArray[np.uint32]
Numbers = int | Sequence[int] | NDArray[Any]


class Purpose(IntEnum):
    """What a random number is for: equal counters under different purposes give unrelated numbers."""

    SAMPLE = 0
    SHUFFLE = 1
    CURRICULUM = 2
    STRATEGY = 3
    EVALUATE = 4
    TASK = 5
    INIT = 6
    BOOTSTRAP = 7
    DEMONSTRATE = 8


def philox(counter: Words, key: Words) -> Words:
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


def key_words(key: Key) -> Words:
    """The low word of the seed; its high word, exclusive-or the purpose spread over 32 bits.

    Purposes never meet under one seed, and seeds below 2**32 never meet at all. ValueError beyond 64 bits.
    """
    seed, purpose = key
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}: it must be at least 0 and below 2**64")
    return np.array([seed & LOW, (seed >> 32) ^ (purpose * 0x9E3779B1 & LOW)], np.uint32)


def uniform(key: Key, draw: Numbers, stream: Numbers, t: Numbers) -> NDArray[np.float64]:
    """A number in [0, 1) for each row of (draw, stream, t), which broadcast; 53 bits each.

    The counter is (draw, low word of stream, high word of stream, t): draw and t below 2**32, stream below 2**64.
    Token t of the i-th sample of a draw has stream i; one that descends from another has `lineage`.

    >>> uniform((0, Purpose.SAMPLE), draw=3, stream=[0, 1], t=0).round(4)
    array([0.7874, 0.6276])
    """
    d, s, t = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.uint64)) for x in (draw, stream, t)))
    if (d > LOW).any() or (t > LOW).any():
        raise ValueError("draw and t must be below 2**32")
    counter = np.stack([d, s & np.uint64(LOW), s >> np.uint64(32), t], 1).astype(np.uint32)
    words = philox(counter, key_words(key)).astype(np.uint64)
    return ((words[:, 0] << np.uint64(21)) | (words[:, 1] >> np.uint64(11))).astype(np.float64) * 2.0**-53


def lineage(stream: tuple[int, ...]) -> int:
    """The stream of a sample named by its descent: `(i,)` is i, a longer one a hash with the highest of 64 bits set.

    >>> lineage((5,)), lineage((5, 0)) == lineage((5, 1))
    (5, False)
    """
    if len(stream) == 1:
        return stream[0]
    return int.from_bytes(_digest(*stream)[:8], "little") | 1 << 63


def permutation(key: Key, draw: int, stream: int, n: int) -> NDArray[np.int64]:
    """An order of `range(n)`: the ranks of n uniform numbers.

    >>> sorted(permutation((0, Purpose.SHUFFLE), 0, 0, 4).tolist())
    [0, 1, 2, 3]
    """
    return np.argsort(uniform(key, draw, stream, np.arange(n)), kind="stable")


def picks(key: Key, draw: Numbers, n: int, below: int) -> NDArray[np.int64]:
    """`n` whole numbers below `below` for each draw, as rows: `(word * below) >> 32`, four words a counter.

    The counter is (draw, 0, 0, place // 4). A number's chance is off by less than 2**-32, so `below` stays small.

    >>> picks((0, Purpose.BOOTSTRAP), [0, 1], n=5, below=10).tolist()
    [[0, 5, 3, 4, 1], [6, 7, 7, 6, 8]]
    """
    draws, blocks = np.atleast_1d(np.asarray(draw, np.uint32)), -(-n // 4)
    counter = np.zeros((len(draws) * blocks, 4), np.uint32)
    counter[:, 0], counter[:, 3] = np.repeat(draws, blocks), np.tile(np.arange(blocks, dtype=np.uint32), len(draws))
    words = philox(counter, key_words(key)).reshape(len(draws), 4 * blocks)[:, :n].astype(np.uint64)
    return ((words * np.uint64(below)) >> np.uint64(32)).astype(np.int64)


def keyed_random(key: Key, *counter: int) -> random.Random:
    """A generator of its own for code that wants one, such as a strategy; the same for the same key and counter."""
    return random.Random(int.from_bytes(_digest(*key, *counter), "little"))


def _digest(*numbers: int) -> bytes:
    return hashlib.sha256(",".join(str(int(n)) for n in numbers).encode()).digest()
