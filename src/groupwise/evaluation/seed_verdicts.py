"""Verdicts on a difference over seeds: four words, a plan of looks, and corrections for many verdicts.

A difference is one number per seed, such as a method's accuracy minus its parent's. `min_difference` is the smallest
difference that counts. It is stated before the runs, as is the plan of looks.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from groupwise.evaluation.interval import LEVEL, mean_interval

Verdict = Literal["shown", "opposite", "absent", "undecided"]

ALPHA = 0.05
"""The error that a family of tests is corrected for."""
LOOKS = (5, 10, 20)
"""The numbers of seeds after which a comparison is looked at. It ends at the first look that decides it."""
LOOK_P = 0.0221
"""The largest p that decides at one of three looks: Pocock's bound (1977, Biometrika 64:191).

With three equally distant looks all together err in 5 % of the comparisons without a difference. With `LOOKS`, which
double, they err in 5.6 % by simulation, and in 11 % without the bound.
"""
LOOK_LEVEL = 1 - LOOK_P
"""The level of every interval of a comparison that may end at each of three looks."""
NOT_ENOUGH_RUNS, LITTLE_ROOM, FIRST_MODELS_DIFFER = "not enough runs", "little room", "first models differ"
NOT_SEPARATED = "rates not separated"
ROOM = 2
"""How many times the smallest difference that counts a metric must be able to move for *absent*.

Near the end of its scale a ceiling makes any difference small, also that of a method that works.
"""


def verdict(
    differences: Sequence[float], min_difference: float, level: float = LEVEL, bases: Sequence[int] = ()
) -> Verdict:
    """The verdict on a claim that the mean difference is above 0, by Student's interval at `level`.

    - *absent*: the interval lies between -min_difference and min_difference: no difference that counts. Nothing is
      absent that `has_little_room`: ask before.
    - *shown*, *opposite*: it lies above 0, or below, and the mean is at least the smallest difference that counts. If
      `bases` are the first models of the seeds, the mean with each of them lies on that side, too.
    - *undecided*: anything else. More seeds may decide.

    >>> [verdict(x, 0.1) for x in ([0.3, 0.31, 0.29], [0.0, 0.01, -0.01], [0.0, 0.1, 0.5])]
    ['shown', 'absent', 'undecided']
    >>> verdict([0.9, 0.8, 0.9, 0.8, -0.1], 0.1), verdict([0.9, 0.8, 0.9, 0.8, -0.1], 0.1, bases=[0, 0, 1, 1, 2])
    ('shown', 'undecided')
    """
    if is_small(differences, min_difference, level):
        return "absent"
    low, high = mean_interval(differences, level)
    counts = abs(math.fsum(differences)) >= min_difference * len(differences) and _one_side(differences, bases)
    if counts and low > 0:
        return "shown"
    return "opposite" if counts and high < 0 else "undecided"


def has_little_room(differences: Sequence[float], min_difference: float, room: float, level: float = LEVEL) -> bool:
    """Whether the interval is that of *absent*, and the metric has too little room for this word.

    `room` is how far the metric can move to the claim's side.

    >>> [has_little_room([0.0, 0.01, -0.01], 0.1, room) for room in (0.15, 0.2)]
    [True, False]
    """
    return room < ROOM * min_difference and is_small(differences, min_difference, level)


def first_models_differ(
    differences: Sequence[float], min_difference: float, level: float, bases: Sequence[int]
) -> bool:
    """Whether all looks have run, and only the sign of the mean with one of the first models forbids a verdict.

    >>> [first_models_differ([0.9, 0.9, last] * 7, 0.1, 0.95, [0, 1, 2] * 7) for last in (-0.1, 0.1)]
    [True, False]
    """
    if len(differences) < LOOKS[-1] or _one_side(differences, bases):
        return False
    return verdict(differences, min_difference, level) in ("shown", "opposite")


def means_differ(differences: Sequence[float], min_difference: float, level: float, bases: Sequence[int]) -> bool:
    """Whether all looks have run, and two first models differ: their intervals do not overlap, and their means count.

    The mean over both is then that of neither, and more seeds do not change that.

    >>> [means_differ([0.3, 0.32, x, x + 0.02] * 5, 0.1, 0.95, [0, 0, 1, 1] * 5) for x in (0.0, 0.25)]
    [True, False]
    """
    if len(differences) < LOOKS[-1]:
        return False
    found = [(fmean(x), mean_interval(x, level)) for x in by_first_model(differences, bases).values() if len(x) > 1]
    return any(b - a > min_difference and high < low for a, (_, high) in found for b, (low, _) in found)


def by_first_model(differences: Sequence[float], bases: Sequence[int]) -> dict[int, list[float]]:
    """The differences with each first model, in the order of their numbers.

    >>> by_first_model([0.1, 0.2, 0.3], [1, 0, 1])
    {0: [0.2], 1: [0.1, 0.3]}
    """
    return {base: [x for x, b in zip(differences, bases, strict=True) if b == base] for base in sorted(set(bases))}


def is_small(differences: Sequence[float], min_difference: float, level: float) -> bool:
    """Whether the interval holds no difference that counts."""
    low, high = mean_interval(differences, level)
    return -min_difference < low and high < min_difference


def _one_side(differences: Sequence[float], bases: Sequence[int]) -> bool:
    """Whether the mean difference has one sign with every first model."""
    sums = list(map(math.fsum, by_first_model(differences, bases).values()))
    return all(x > 0 for x in sums) or all(x < 0 for x in sums)


def not_worse(differences: Sequence[float], margin: float, level: float = LEVEL) -> Verdict:
    """The verdict on a claim that the mean difference is above `-margin`: nothing that counts is lost.

    >>> [not_worse(x, 0.1) for x in ([0.0, 0.01, -0.01], [-0.3, -0.31, -0.29], [0.0, -0.1, -0.5])]
    ['shown', 'opposite', 'undecided']
    """
    low, high = mean_interval(differences, level)
    return "shown" if low > -margin else "opposite" if high < -margin else "undecided"


def corrected_p(p: float, level: float = LOOK_LEVEL) -> float:
    """The p of a verdict at a level, such as that of one of three looks, for a correction over many verdicts.

    >>> round(corrected_p(0.0221), 6), corrected_p(0.9), round(corrected_p(0.01, level=0.95), 6)
    (0.05, 1.0, 0.01)
    """
    return min(1.0, p * ALPHA / (1 - level))


def holm(ps: Sequence[float]) -> list[bool]:
    """Which of many tests reject at a family-wise error of 5 %. Holm 1979, Scand. J. Stat. 6:65.

    >>> holm([0.01, 0.04, 0.03])
    [True, False, False]
    """
    rejected = [False] * len(ps)
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        if ps[i] * (len(ps) - rank) > ALPHA:
            break
        rejected[i] = True
    return rejected


def benjamini_hochberg(ps: Sequence[float]) -> list[bool]:
    """Which of many tests reject at a false discovery rate of 5 %.

    Benjamini and Hochberg 1995, J. R. Stat. Soc. B 57:289.

    >>> benjamini_hochberg([0.01, 0.04, 0.03])
    [True, True, True]
    """
    bounds = (p for rank, p in enumerate(sorted(ps), 1) if p <= ALPHA * rank / len(ps))
    largest = max(bounds, default=-1.0)
    return [p <= largest for p in ps]
