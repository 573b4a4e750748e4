"""How sure a mean over problems is. What is uncertain is which problems were asked, so problems are drawn anew.

An interval is the cluster bootstrap's (problems with all their answers, 2.5th and 97.5th percentile), widened to the
score interval where that reaches further. The bootstrap alone is blind to what it has not seen: 29 right of 29 would
be certain, and near 0 and 1 it held the truth in a third of trials (docs/evaluation.md).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from groupwise.models import Purpose, picks

Numbers = NDArray[np.float64]

Z = 1.959963984540054
"""The normal law's 97.5 % point."""
RESAMPLES = 10_000
LEVEL = 0.95
RULE = "cluster bootstrap over problems, widened to Wilson's score interval at the effective number of problems"
AT_ONCE = 1 << 20  # whole numbers held at a time


def interval(*columns: Numbers) -> list[tuple[float, float]]:
    """95 % of the mean of each column of values in [0, 1], one a problem. Of no problems nothing is known.

    >>> interval(np.zeros(0)), [round(x, 3) for x in interval(np.ones(29))[0]]
    ([(0.0, 1.0)], [0.883, 1.0])
    """
    if not len(columns[0]):
        return [(0.0, 1.0)] * len(columns)
    ends = [(*score(values), *drawn) for values, drawn in zip(columns, spread(*columns))]
    return [(min(low, left), max(high, right)) for low, high, left, right in ends]


def paired(a: Numbers, b: Numbers) -> tuple[float, float]:
    """95 % of `mean(b) - mean(a)` over the same problems, each value in [0, 1].

    The bootstrap of the differences, widened to Newcombe's square-and-add interval: the two score intervals put
    together with the correlation r that the problems show (Newcombe 1998, Stat. Med. 17:2635, r without correction).

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

    def added(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * r * x * y + y * y))

    difference = mean_b - mean_a
    [(low, high)] = spread(b - a)
    return (
        max(-1.0, min(low, difference - added(mean_b - low_b, high_a - mean_a))),
        min(1.0, max(high, difference + added(high_b - mean_b, mean_a - low_a))),
    )


def averaged(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """95 % of the mean of numbers that are independent, such as those of different sets of problems.

    Square-and-add: half the width on each side is the root of the sum of squares of theirs, over how many there are
    (Zou and Donner 2008, Stat. Med. 27:1693).

    >>> averaged([0.5, 0.5], [(0.2, 0.9), (0.1, 0.8)])
    (0.25, 0.75)
    """
    mean, n = math.fsum(values) / len(values), len(values)
    below = math.hypot(*(x - low for x, (low, _) in zip(values, ends))) / n
    above = math.hypot(*(high - x for x, (_, high) in zip(values, ends))) / n
    return mean - below, mean + above


def score(values: Numbers) -> tuple[float, float]:
    """Wilson's interval at the effective number of problems, `m (1 - m) / (s^2 / P)` with s^2 the values' variance.

    For values that are 0 or 1 that number is P, and this is Wilson's own; it is P also where all are equal.
    """
    problems, mean, variance = len(values), float(values.mean()), float(values.var())
    effective = mean * (1 - mean) / (variance / problems) if variance > 0 else float(problems)
    centre = (mean + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * math.sqrt(max(0.0, mean * (1 - mean) / effective) + Z**2 / (4 * effective**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def spread(*columns: Numbers) -> list[tuple[float, float]]:
    """The percentiles of each column's mean over problems drawn with replacement.

    The same draws for the same count of problems, whatever else is drawn: nothing random is kept, so an interval can be
    had again from stored answers.
    """
    problems = len(columns[0])
    rows, means = max(1, AT_ONCE // problems), []
    for at in range(0, RESAMPLES, rows):
        which = picks((0, Purpose.BOOTSTRAP), np.arange(at, min(at + rows, RESAMPLES)), problems, problems)
        means.append([values[which].mean(1) for values in columns])
    ends = np.quantile(np.concatenate(means, 1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return [(float(low), float(high)) for low, high in ends.T]
