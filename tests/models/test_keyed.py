"""Keyed random numbers: known answers, and numbers that depend on key and counter only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.models import RandomPurpose, keyed_random, lineage, permutation, philox, picks, uniform

WORD = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, words: str) -> None:
    read = [np.array([int(w, 16) for w in text.split()], np.uint32) for text in (counter, key, words)]
    assert (philox(read[0][None], read[1])[0] == read[2]).all()


def test_uniform_is_the_first_53_bits_of_philox_at_the_documented_words() -> None:
    seed, draw, stream, t = 0x0123456789ABCDEF, 7, 0xFEDCBA9876543210, 11
    high = 0x01234567 ^ (RandomPurpose.SHUFFLE * 0x9E3779B1)
    counter = np.array([[draw, 0x76543210, 0xFEDCBA98, t]], np.uint32)
    first, second, *_ = philox(counter, np.array([0x89ABCDEF, high], np.uint32))[0].tolist()
    expected = ((first << 21) | (second >> 11)) * 2.0**-53
    assert uniform((seed, RandomPurpose.SHUFFLE), draw, stream, t).tolist() == [expected]


@given(st.lists(st.tuples(WORD, st.integers(0, 2**64 - 1), WORD), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_a_number_depends_on_nothing_but_its_key_and_counter(rows: list[tuple[int, int, int]], seed: int) -> None:
    key = (seed, RandomPurpose.SAMPLE)
    draw, stream, t = (np.array(column, np.uint64) for column in zip(*rows))
    together = uniform(key, draw, stream, t)
    assert ((together >= 0) & (together < 1)).all()
    assert together.tolist() == [uniform(key, *row)[0] for row in rows]


def test_every_word_matters() -> None:
    base = (5, RandomPurpose.SAMPLE, 1, 2, 3)
    others = [(6, *base[1:]), (5 + (1 << 32), *base[1:]), (5, RandomPurpose.TASK, 1, 2, 3)]
    others += [(*base[:2], 2, 2, 3), (*base[:2], 1, 3, 3), (*base[:2], 1, 2 + (1 << 32), 3), (*base[:2], 1, 2, 4)]
    numbers = {uniform((seed, purpose), *counter)[0] for seed, purpose, *counter in [base, *others]}
    assert len(numbers) == 8


def test_numbers_are_spread_evenly() -> None:
    u = uniform((0, RandomPurpose.SAMPLE), 0, 0, np.arange(20_000))
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert abs(u.mean() - 0.5) < 0.01
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees of freedom: p = 0.0007


@pytest.mark.parametrize(("seed", "draw", "t"), [(-1, 0, 0), (1 << 64, 0, 0), (0, 1 << 32, 0), (0, 0, 1 << 32)])
def test_keys_out_of_range_are_refused(seed: int, draw: int, t: int) -> None:
    with pytest.raises(ValueError, match="below 2"):
        uniform((seed, RandomPurpose.SAMPLE), draw, 0, t)


def test_the_lineage_of_a_sample_is_its_index_and_differs_from_all_forks() -> None:
    assert [lineage((i,)) for i in range(3)] == [0, 1, 2]
    forks = {lineage(s) for s in [(0, 0), (0, 1), (1, 0), (0, 0, 0), (10,), (1, 0, 0), (10, 0)]}
    assert len(forks) == 7
    assert sorted(forks)[0] == 10
    assert sorted(forks)[1] >= 1 << 63


def test_permutations_and_generators_are_keyed() -> None:
    key = (3, RandomPurpose.SHUFFLE)
    order = permutation(key, 2, 0, 50)
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() == permutation(key, 2, 0, 50).tolist() != permutation(key, 3, 0, 50).tolist()
    assert permutation(key, 0, 0, 0).tolist() == []
    assert keyed_random(key, 1, 2).random() == keyed_random(key, 1, 2).random() != keyed_random(key, 12).random()


def test_picks_are_words_of_philox_scaled() -> None:
    """Four words per counter, the last words of a row unused; equal for any set of draws in a call."""
    picked = picks((3, RandomPurpose.BOOTSTRAP), [5, 9], n=6, below=1000)
    key = np.array([3, RandomPurpose.BOOTSTRAP * 0x9E3779B1 & 0xFFFFFFFF], np.uint32)
    for row, draw in zip(picked, (5, 9)):
        words = [int(w) for block in (0, 1) for w in philox(np.array([[draw, 0, 0, block]], np.uint32), key)[0]]
        assert row.tolist() == [w * 1000 >> 32 for w in words[:6]]
    assert picked[1].tolist() == picks((3, RandomPurpose.BOOTSTRAP), 9, n=6, below=1000)[0].tolist()
    many = picks((0, RandomPurpose.BOOTSTRAP), range(1000), n=30, below=30)
    assert np.bincount(many.ravel(), minlength=30) == pytest.approx(np.full(30, 1000), abs=150)
    assert many.min() == 0 and many.max() == 29
