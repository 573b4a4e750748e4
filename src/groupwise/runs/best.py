"""Chooses a run's best checkpoint by a held-out metric, such as greedy accuracy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from groupwise.data import ACCURACY, ACCURACY_GREEDY, SCORE, SCORE_GREEDY

METRICS = (ACCURACY_GREEDY, SCORE_GREEDY, ACCURACY, SCORE)
"""The metrics that can choose the best checkpoint."""
BY_DEFAULT = (ACCURACY_GREEDY, SCORE_GREEDY)
"""The metrics that choose the best checkpoint if the recipe names none: the first of them that the run has."""


def is_evaluated(line: Mapping[str, Any]) -> bool:
    """Whether an iteration's metrics contain a held-out accuracy or score."""
    return any(name in line for name in METRICS)


def held_out_values(lines: Sequence[Mapping[str, Any]], metric: str = "") -> dict[int, float]:
    """The values of a held-out metric by iteration. Without a name, it is the first of BY_DEFAULT that has values.

    >>> held_out_values([{"iteration": 0, "eval/accuracy_greedy": 0.5}, {"iteration": 1}])
    {0: 0.5}
    """
    for name in (metric,) if metric else BY_DEFAULT:
        if values := {line["iteration"]: line[name] for line in lines if line.get(name) is not None}:
            return values
    return {}


def best_iteration(values: Mapping[int, float], among: Iterable[int]) -> int | None:
    """The iteration with the highest value, the earliest at a tie; None if no iteration has a value.

    >>> best_iteration({0: 0.5, 10: 0.75, 20: 0.75}, [0, 5, 10, 20])
    10
    """
    return max(sorted(i for i in among if i in values), key=values.__getitem__, default=None)
