"""95 % intervals of a mean over problems, for the uncertainty from the choice of problems.

An interval is a cluster bootstrap (problems are resampled with all their answers; 2.5th and 97.5th percentile), widened
to the score interval if that is wider. The bootstrap alone is too narrow near 0 and 1: it calls 29 right of 29 certain,
and there it covered the true value in a third of trials (docs/evaluation.md).
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import stdev

import numpy as np
from numpy.typing import NDArray

from groupwise.models import RandomPurpose, picks

Numbers = NDArray[np.float64]

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
RESAMPLES = 10_000
LEVEL = 0.95
RULE = "cluster bootstrap over problems, widened to Wilson's score interval at the effective number of problems"
AT_ONCE = 1 << 20  # integers in memory at a time


def interval(*columns: Numbers) -> list[tuple[float, float]]:
    """The 95 % interval of each column's mean. A column has one value in [0, 1] per problem. Without any: [0, 1].

    >>> interval(np.zeros(0)), [round(x, 3) for x in interval(np.ones(29))[0]]
    ([(0.0, 1.0)], [0.883, 1.0])
    """
    if not len(columns[0]):
        return [(0.0, 1.0)] * len(columns)
    ends = [(*score(values), *resampled) for values, resampled in zip(columns, spread(*columns))]
    return [(min(low, left), max(high, right)) for low, high, left, right in ends]


def score_interval(values: Numbers) -> tuple[float, float]:
    """The 95 % interval of the mean of scores, or of their paired differences: any numbers, one per problem.

    The bootstrap alone, since the range of scores is unknown. Equal scores have an interval without width.

    >>> score_interval(np.array([2.0, 2.0])), score_interval(np.array([-2.0, 4.0]))
    ((2.0, 2.0), (-2.0, 4.0))
    """
    [ends] = spread(values)
    return ends


def paired(a: Numbers, b: Numbers) -> tuple[float, float]:
    """The 95 % interval of `mean(b) - mean(a)` over the same problems, with values in [0, 1].

    The bootstrap of the differences, widened to Newcombe's square-and-add interval. It combines the two score intervals
    with the correlation r over problems (Newcombe 1998, Stat. Med. 17:2635, r without correction).

    >>> [round(x, 3) for x in paired(np.ones(30), np.ones(30))]
    [-0.114, 0.114]
    """
    if not len(a):
        return -1.0, 1.0
    (low_a, high_a), (low_b, high_b) = score(a), score(b)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    away_a, away_b = a - mean_a, b - mean_b
    scale = math.sqrt(float((away_a**2).sum() * (away_b**2).sum()))
    r = float((away_a * away_b).sum()) / scale if scale > 0 else 0.0

    def combined(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * r * x * y + y * y))

    difference = mean_b - mean_a
    [(low, high)] = spread(b - a)
    return (
        max(-1.0, min(low, difference - combined(mean_b - low_b, high_a - mean_a))),
        min(1.0, max(high, difference + combined(high_b - mean_b, mean_a - low_a))),
    )


def averaged(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The 95 % interval of the mean of independent numbers, such as the means of different sets of problems.

    Square-and-add: each half-width is the root of the sum of the squared half-widths, divided by their number
    (Zou and Donner 2008, Stat. Med. 27:1693).

    >>> averaged([0.5, 0.5], [(0.2, 0.9), (0.1, 0.8)])
    (0.25, 0.75)
    """
    mean, n = math.fsum(values) / len(values), len(values)
    below = math.hypot(*(x - low for x, (low, _) in zip(values, ends))) / n
    above = math.hypot(*(high - x for x, (_, high) in zip(values, ends))) / n
    return mean - below, mean + above


def score(values: Numbers) -> tuple[float, float]:
    """Wilson's interval of a mean m in [0, 1], at the effective number of problems, `m (1 - m) / (s^2 / P)`.

    s^2 is the variance of the P values. For values of 0 or 1 that number is P, and the result is Wilson's interval. It
    is P also if all values are equal.
    """
    problems, mean, variance = len(values), float(values.mean()), float(values.var())
    effective = mean * (1 - mean) / (variance / problems) if variance > 0 else float(problems)
    centre = (mean + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * math.sqrt(max(0.0, mean * (1 - mean) / effective) + Z**2 / (4 * effective**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def spread(*columns: Numbers) -> list[tuple[float, float]]:
    """Bootstrap percentiles of each column's mean, with problems resampled.

    The resamples depend only on the number of problems, so stored answers give the same interval again.
    """
    problems = len(columns[0])
    rows, means = max(1, AT_ONCE // problems), []
    for at in range(0, RESAMPLES, rows):
        which = picks((0, RandomPurpose.BOOTSTRAP), np.arange(at, min(at + rows, RESAMPLES)), problems, problems)
        means.append([values[which].mean(1) for values in columns])
    ends = np.quantile(np.concatenate(means, 1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return [(float(low), float(high)) for low, high in ends.T]


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's interval of the mean of a few independent numbers, such as one difference per seed.

    A bootstrap over three seeds would be far too narrow. One number has an infinite interval.

    >>> [round(x, 3) for x in mean_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return -math.inf, math.inf
    half = t_quantile(n - 1, level) * standard_error(values)
    return mean - half, mean + half


def mean_p(values: Sequence[float]) -> float:
    """The two-sided p of Student's test that the mean is 0; 1 for one number or for zeros alone.

    >>> round(mean_p([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2 or mean == 0:
        return 1.0
    error = standard_error(values)
    return 1 - t_probability(abs(mean) / error, len(values) - 1) if error else 0.0


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of at least two independent numbers."""
    return stdev(values) / math.sqrt(len(values))


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """The x with `t_probability(x, degrees) = level`, by bisection.

    >>> [round(t_quantile(n), 4) for n in (2, 10, 30, 1000)]
    [4.3027, 2.2281, 2.0423, 1.9623]
    """
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < level:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_probability(middle, degrees) < level else (low, middle)
    return high


def t_probability(x: float, degrees: int) -> float:
    """The probability that Student's t lies between -x and x, for whole degrees of freedom.

    A finite sum: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(x / math.sqrt(degrees))
    cosine, term, total = math.cos(angle), 1.0, 0.0
    if degrees % 2 == 0:
        for k in range(1, degrees, 2):
            total, term = total + term, term * cosine**2 * k / (k + 1)
        return math.sin(angle) * total
    term = cosine
    for k in range(2, degrees, 2):
        total, term = total + term, term * cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + math.sin(angle) * total)
