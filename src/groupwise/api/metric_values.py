"""The values of a metric of a run, by iteration."""

from groupwise.core import Usage, first_items

__all__ = ["MetricValues"]


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
        what = f"the metric has no value at iteration {iteration!r}"
        evidence = f"it has values at {first_items([*self]) or 'none'}"
        raise NoSuchIteration(what, evidence=evidence, fix="[-1] is the last value")
