"""The values of a metric of a run, by iteration."""

from groupwise.core import Usage

__all__ = ["MetricValues"]

SHOWN = 8
"""The most iterations that an error lists."""


class NoSuchIteration(Usage, KeyError):
    """A metric has no value at an iteration."""


class MetricValues(dict[int, float]):
    """The values of a metric by iteration, in order. Negative iterations count from the end, as in a list.

    `NoSuchIteration`, a `KeyError`, for an iteration without a value.

    >>> values = MetricValues({0: 0.5, 10: 0.75})
    >>> values[10], values[-1], values[-2], -1 in values
    (0.75, 0.75, 0.5, False)
    """

    def __missing__(self, iteration: object) -> float:
        if isinstance(iteration, int) and -len(self) <= iteration < 0:
            return [*self.values()][iteration]
        keys = ", ".join(map(str, [*self][:SHOWN])) + (f" and {len(self) - SHOWN} more" if len(self) > SHOWN else "")
        what = f"the metric has no value at iteration {iteration!r}"
        raise NoSuchIteration(what, evidence=f"it has values at {keys or 'none'}", fix="[-1] is the last value")
