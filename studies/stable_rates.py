"""How large a learning rate a method stands, and how far its ratios spread, from runs named `METHOD RATE`."""

import math
from collections.abc import Sequence

from studies.study import Estimate, Measured

RIGHT, LOW, HIGH = "outcome/correct", "ratio/p01", "ratio/p99"


def over_rates(m: Measured, key: str, metric: str, rates: Sequence[str], first: int, last: int) -> Estimate:
    """A method's mean of a metric over iterations and rates, by seed."""
    runs = [m.mean(f"{key} {rate}", metric, first, last).values for rate in rates]
    return Estimate(tuple(math.fsum(values) / len(rates) for values in zip(*runs)))


def rung(m: Measured, key: str, rates: Sequence[str], last: int) -> Estimate:
    """The rung of a method's largest stable rate, counted from 1; 0 if no rate is stable. By seed.

    Stable: the share of right answers over the last five iterations, up to `last`, is not below that of the first five.
    """
    arms = [f"{key} {rate}" for rate in rates]
    gains = [m.mean(a, RIGHT, last - 4, last).minus(m.mean(a, RIGHT, 1, 5)).values for a in arms]
    return Estimate(tuple(float(max((i for i, x in enumerate(seed, 1) if x >= 0), default=0)) for seed in zip(*gains)))


def spread(m: Measured, arm: str) -> list[tuple[int, Estimate]]:
    """`log(p99 / p1)` of a run's ratios at each iteration."""
    pairs = zip(m.series(arm, LOW), m.series(arm, HIGH), strict=True)
    return [(i, Estimate(tuple(math.log(b / a) for a, b in zip(x.values, y.values)))) for (i, x), (_, y) in pairs]


def mean_spread(m: Measured, key: str, rates: Sequence[str], first: int, last: int) -> Estimate:
    """The mean spread of a method's ratios over iterations and rates, by seed."""
    inside = [x.values for rate in rates for i, x in spread(m, f"{key} {rate}") if first <= i <= last]
    return Estimate(tuple(math.fsum(values) / len(inside) for values in zip(*inside)))
