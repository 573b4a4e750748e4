"""Tests of the intervals against independent computations, published numbers and simulated trials."""

import math

import numpy as np
import pytest

from groupwise.evaluation.interval import RESAMPLES, interval, mean_interval, paired, score, spread
from groupwise.models import RandomPurpose, picks
from tests.evaluation.test_evaluate import RIGHT


def test_with_one_answer_per_problem_the_interval_is_at_least_wilson_s() -> None:
    """Newcombe 1998, Stat. Med. 17:857, table I, method 3: 81 of 263 and 15 of 148."""
    for c, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        values = np.array([1.0] * c + [0.0] * (n - c))
        assert score(values) == pytest.approx((low, high), abs=5e-5)
        [(wide_low, wide_high)] = interval(values)
        assert wide_low <= score(values)[0] and score(values)[1] <= wide_high
        assert (wide_low, wide_high) == pytest.approx((low, high), abs=0.02)
    assert score(np.ones(29)) == pytest.approx((0.8830, 1.0), abs=5e-5)


def test_with_many_answers_per_problem_the_score_interval_uses_the_effective_number() -> None:
    values = np.array(RIGHT) / 32
    p = values.mean()
    n, z = p * (1 - p) / (values.var() / len(values)), 1.959963984540054
    roots = np.roots([1 + z**2 / n, -(2 * p + z**2 / n), p**2])  # |p - x| = z sqrt(x (1 - x) / n)
    assert score(values) == pytest.approx((roots.min(), roots.max()), abs=1e-12)


def test_the_bootstrap_resamples_problems_with_all_their_answers() -> None:
    values = np.array(RIGHT) / 32
    [(low, high)] = spread(values)
    other = np.random.default_rng(0)
    means = values[other.integers(0, 30, (100_000, 30))].mean(1)
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.006)
    means = [values[picks((0, RandomPurpose.BOOTSTRAP), i, 30, 30)[0]].mean() for i in range(RESAMPLES)]
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-15)


def test_the_wider_end_is_taken() -> None:
    for values in (np.array(RIGHT) / 32, np.array([1.0] * 25 + [0.0] * 5), np.ones(12), np.zeros(1)):
        [(low, high)], [(left, right)] = interval(values), spread(values)
        assert (low, high) == (min(left, score(values)[0]), max(right, score(values)[1]))
    [(low, high)] = interval(np.ones(12))
    assert low < 0.8 and high == 1.0  # twelve of twelve are not certain
    assert interval(np.zeros(0), np.zeros(0)) == [(0.0, 1.0)] * 2 and paired(np.zeros(0), np.zeros(0)) == (-1.0, 1.0)


def test_a_column_s_interval_does_not_depend_on_the_others() -> None:
    a, b = np.array(RIGHT) / 32, (np.array(RIGHT) > 16).astype(float)
    assert interval(a, b) == interval(a) + interval(b)
    assert interval(a) == interval(a)  # the resamples are deterministic


def test_more_problems_than_fit_into_one_batch_of_resamples() -> None:
    values = np.arange(3000) / 3000
    [(low, high)] = spread(values)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(1 / 12 / 3000), rel=0.05)


def test_a_paired_interval_uses_that_the_problems_are_the_same() -> None:
    a = np.array(RIGHT) / 32
    b = np.minimum(1, a + 1 / 32)
    low, high = paired(a, b)
    assert low < (b - a).mean() < high and high - low < 0.05 and low > 0
    apart = interval(b)[0][1] - interval(a)[0][0]
    assert apart > 0.2  # the two separate intervals overlap widely
    assert paired(b, a) == pytest.approx((-high, -low), abs=2e-3)
    low, high = paired(a, a)
    assert low <= 0 <= high and high - low < 0.01
    low, high = paired(np.ones(30), np.ones(30))
    assert -0.12 < low < -0.05 and 0.05 < high < 0.12  # thirty ties do not prove that two models are equal


def test_a_pair_of_single_answers_is_newcombe_s() -> None:
    """Square-and-add from Wilson's intervals, with the correlation of the 2 x 2 table; computed for one table."""
    both, first, second, none = 20, 12, 2, 16
    a = np.array([1.0] * both + [1.0] * first + [0.0] * second + [0.0] * none)
    b = np.array([1.0] * both + [0.0] * first + [1.0] * second + [0.0] * none)
    r = (both * none - first * second) / np.sqrt(32 * 18 * 22 * 28)
    (la, ha), (lb, hb), d = score(a), score(b), -0.2
    low = d - np.sqrt((0.44 - lb) ** 2 - 2 * r * (0.44 - lb) * (ha - 0.64) + (ha - 0.64) ** 2)
    high = d + np.sqrt((hb - 0.44) ** 2 - 2 * r * (hb - 0.44) * (0.64 - la) + (0.64 - la) ** 2)
    [(left, right)] = spread(b - a)
    assert paired(a, b) == pytest.approx((min(low, left), max(high, right)), abs=1e-12)


def test_the_interval_covers_the_true_value_at_its_level() -> None:
    """Problems with mean pass rates of 0.05, 0.5 and 0.97, and 8 answers each; seeded."""
    random = np.random.default_rng(1)
    for a, b in ((0.1, 1.9), (0.5, 0.5), (8, 0.25)):
        covered = 0
        for _ in range(60):
            values = random.binomial(8, random.beta(a, b, 30)) / 8
            [(low, high)] = interval(values)
            covered += low <= a / (a + b) <= high
        assert covered >= 54, (a, b, covered)


def test_an_interval_over_few_seeds_is_student_s() -> None:
    """Three seeds: 4.303 standard errors on each side. One seed says nothing."""
    low, high = mean_interval([1.0, 2.0, 3.0])
    assert (low, high) == (pytest.approx(2 - 4.302652729911275 / 3**0.5), pytest.approx(2 + 4.302652729911275 / 3**0.5))
    assert mean_interval([0.5]) == (-math.inf, math.inf) and mean_interval([0.5, 0.5]) == (0.5, 0.5)
