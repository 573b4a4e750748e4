"""The largest stable learning rate of a method, and how far its ratios spread, from runs named `METHOD RATE`."""

import math
from collections.abc import Mapping, Sequence

from studies.study import Estimate, Measured, table

RIGHT, LOW, HIGH = "outcome/correct", "ratio/p01", "ratio/p99"


def over_rates(m: Measured, key: str, metric: str, rates: Sequence[str], first: int, last: int) -> Estimate:
    """A method's mean of a metric over iterations and rates, by seed."""
    runs = [m.mean(f"{key} {rate}", metric, first, last).values for rate in rates]
    return m.estimate((math.fsum(values) / len(rates) for values in zip(*runs)), metric)


def changes(m: Measured, key: str, rates: Sequence[str], last: int) -> list[tuple[float, ...]]:
    """The share of right answers over the last five iterations minus that over the first, by rate, for each seed."""
    arms = [f"{key} {rate}" for rate in rates]
    return list(zip(*(m.mean(a, RIGHT, last - 4, last).minus(m.mean(a, RIGHT, 1, 5)).values for a in arms)))


def rung(m: Measured, key: str, rates: Sequence[str], last: int) -> Estimate:
    """The rung of a method's largest stable rate, counted from 1; 0 if no rate is stable. By seed.

    Stable: the share of right answers over the last five iterations, up to `last`, is not below that of the first five.
    """
    by_seed = changes(m, key, rates, last)
    return m.estimate(float(max((i for i, x in enumerate(seed, 1) if x >= 0), default=0)) for seed in by_seed)


def by_base(m: Measured, methods: Mapping[str, str], rates: Sequence[str], last: int) -> str:
    """A table of the rung of each method on each base, with the changes that decide it."""
    columns = []
    for key in methods:
        pairs = zip(rung(m, key, rates, last).values, changes(m, key, rates, last), strict=True)
        columns.append([f"{n:.0f} ({' / '.join(f'{x:+.3f}' for x in of_rates)})" for n, of_rates in pairs])
    return table(("base", *methods.values()), zip(m.seeds, *columns, strict=True))


def in_words(difference: Estimate) -> str:
    """On how many bases a difference of rungs is above, at and below 0, with the result.

    >>> in_words(Estimate((0.0, 1.0, 0.0)))
    'higher on 1 of 3 bases, equal on 2 (*undecided*)'
    """
    counts = {
        "higher": sum(x > 0 for x in difference.values),
        "equal": difference.values.count(0.0),
        "lower": sum(x < 0 for x in difference.values),
    }
    first, *others = (f"{word} on {n}" for word, n in counts.items() if n)
    return f"{', '.join([f'{first} of {len(difference.values)} bases', *others])} ({difference.verdict})"


def parted(m: Measured, one: str, other: str, rates: Sequence[str]) -> str:
    """In how many pairs of runs two methods have equal shares of right answers, and how far the others part."""
    largest = []
    for rate in rates:
        for a, b in zip(m.runs(f"{one} {rate}"), m.runs(f"{other} {rate}"), strict=True):
            largest.append(max(abs(x - b.metrics[RIGHT][i]) for i, x in a.metrics[RIGHT].items()))
    return (
        f"{largest.count(0.0)} of {len(largest)} pairs of runs have equal shares of right answers in every iteration; "
        f"the others part, by up to {max(largest):.3f} in one iteration."
    )


def spread(m: Measured, arm: str) -> list[tuple[int, Estimate]]:
    """`log(p99 / p1)` of a run's ratios at each iteration."""
    pairs = zip(m.series(arm, LOW), m.series(arm, HIGH), strict=True)
    return [(i, Estimate(tuple(math.log(b / a) for a, b in zip(x.values, y.values)))) for (i, x), (_, y) in pairs]


def mean_spread(m: Measured, key: str, rates: Sequence[str], first: int, last: int) -> Estimate:
    """The mean spread of a method's ratios over iterations and rates, by seed."""
    inside = [x.values for rate in rates for i, x in spread(m, f"{key} {rate}") if first <= i <= last]
    return m.estimate(math.fsum(values) / len(inside) for values in zip(*inside))
