"""The seeds after which a comparison is decided, by the mean and the spread of the differences of a pilot.

It plans further runs of an undecided comparison. It is no power of a verdict that was reached.
"""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev

from groupwise.evaluation.interval import t_quantile
from groupwise.evaluation.seed_verdicts import LOOK_P, LOOKS

POWER = 0.8
"""The share of the cases in which so many seeds decide."""
MOST = 100
"""More seeds are not counted: *more than 100*."""


def seeds_to_decide(differences: Sequence[float], min_difference: float, p: float = LOOK_P) -> int | None:
    """The fewest seeds, from the first look on, that decide in 80 % of the cases; None for more than `MOST`.

    In these cases the mean and the spread over seeds are those of `differences`, of at least two seeds. They decide if
    the interval of a look lies on one side of 0 and the mean counts, or if it lies within `min_difference`. Means are
    normal, the interval is Student's. First models, which must agree, and rooms are left out.

    >>> [seeds_to_decide(x, 0.1) for x in ([0.1, 0.3, 0.2], [0.0, 0.12, 0.03], [0.0, 0.2, 0.1])]
    [6, 18, None]
    """
    mean, deviation = abs(fmean(differences)), stdev(differences)
    return _fewest(lambda error, half: _decided(mean, error, half, min_difference), deviation, p)


def seeds_to_keep(differences: Sequence[float], margin: float, p: float = LOOK_P) -> int | None:
    """The same for what a method must keep: the interval lies above `-margin`, or below it.

    >>> seeds_to_keep([0.0, 0.01, -0.01], 0.1), seeds_to_keep([0.0, -0.2, -0.09], 0.1)
    (5, None)
    """
    mean, deviation = abs(fmean(differences) + margin), stdev(differences)
    return _fewest(lambda error, half: NormalDist().cdf((mean - half) / error), deviation, p)


def _decided(mean: float, error: float, half: float, least: float) -> float:
    """The share of the cases that end as *shown*, *opposite* or *absent*; `half` is that of an interval's width."""
    below = NormalDist(mean, error).cdf
    absent = below(least - half) - below(half - least) if half < least else 0.0
    return 1 - below(max(half, least)) + below(-max(half, least)) + absent


def _fewest(share: Callable[[float, float], float], deviation: float, p: float) -> int | None:
    """The fewest seeds with which a share of `POWER` is decided, by the error of a mean and its interval's half."""
    for n in range(LOOKS[0], MOST + 1):
        error = max(deviation / math.sqrt(n), math.ulp(1.0))
        if share(error, t_quantile(n - 1, 1 - p) * error) >= POWER:
            return n
    return None


def seeds_in_words(needed: int | None, made: int) -> str:
    """The needed seeds in a cell; *more than* those that were made, if as many or more of them decided nothing.

    >>> seeds_in_words(12, 5), seeds_in_words(None, 5), seeds_in_words(8, 20)
    ('12', 'more than 100', 'more than 20')
    """
    if needed is None:
        return f"more than {MOST}"
    return str(needed) if needed > made else f"more than {made}"
