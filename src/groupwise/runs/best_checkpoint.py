"""Chooses a run's best checkpoint by held-out metrics: greedy accuracy, score, sampled answers, then loss."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from groupwise.core import counted
from groupwise.data import ACCURACY, ACCURACY_GREEDY, EVAL_LOSS, SCORE, SCORE_GREEDY

METRICS = (ACCURACY_GREEDY, SCORE_GREEDY, ACCURACY, SCORE, EVAL_LOSS)
"""The metrics that choose the best checkpoint: the next one decides between equal values of those before it."""
LOWER = (EVAL_LOSS,)
"""The metrics of which the smallest value is the best."""
HELD_OUT = {
    EVAL_LOSS: "held-out loss",
    ACCURACY_GREEDY: "held-out greedy accuracy",
    ACCURACY: "held-out sampled accuracy",
    SCORE_GREEDY: "held-out greedy score",
    SCORE: "held-out sampled score",
}
"""The labels of the held-out metrics."""

Values = tuple[float, ...]
"""An evaluation's held-out values in the order in which they decide, negated if lower is better; `-inf` if missing."""


def is_evaluated(line: Mapping[str, Any]) -> bool:
    """Whether an iteration's metrics contain a held-out accuracy or score."""
    return any(name in line for name in METRICS)


def deciding(metric: str = "") -> tuple[str, ...]:
    """The metrics in the order in which they decide: `metric` first, if it is given."""
    return tuple(dict.fromkeys((metric, *METRICS) if metric else METRICS))


def held_out_values(lines: Sequence[Mapping[str, Any]], metric: str = "") -> dict[int, Values]:
    """The held-out values by iteration, in the order of `deciding`. With a metric, only iterations that have it.

    >>> held_out_values([{"iteration": 0, "eval/accuracy_greedy": 0.5}, {"iteration": 1}])
    {0: (0.5, -inf, -inf, -inf, -inf)}
    """
    names = deciding(metric)
    needed = names[:1] if metric else names
    return {
        line["iteration"]: tuple(_value(line, name) for name in names)
        for line in lines
        if any(line.get(name) is not None for name in needed)
    }


def _value(line: Mapping[str, Any], name: str) -> float:
    if line.get(name) is None:
        return -math.inf
    return -line[name] if name in LOWER else line[name]


def best_iteration(values: Mapping[int, Values], among: Iterable[int]) -> int | None:
    """The iteration with the highest values; the latest if all of them are equal. None if no iteration has a value.

    >>> best_iteration({0: (0.0, 0.1), 10: (0.0, 0.3), 20: (0.0, 0.3)}, [0, 5, 10, 20])
    20
    """
    return max(sorted((i for i in among if i in values), reverse=True), key=values.__getitem__, default=None)


def describe_best(values: Mapping[int, Values], iteration: int, metric: str = "") -> str:
    """The figures of the chosen iteration, and of iterations with equal value.

    >>> describe_best({0: (0.0, 0.1), 4: (0.0, 0.3), 8: (0.0, 0.3)}, 8)
    'held-out greedy accuracy 0.000, held-out greedy score 0.300 at iteration 8, equal at 4, of 3 evaluations'
    """
    best = values[iteration]
    figures = [
        f"{HELD_OUT[name]} {-x if name in LOWER else x:.3f}" for name, x in zip(deciding(metric), best) if x > -math.inf
    ]
    equal = ", ".join(str(i) for i in sorted(values) if values[i] == best and i != iteration)
    ties = f", equal at {equal}" if equal else ""
    return f"{', '.join(figures)} at iteration {iteration}{ties}, of {counted(len(values), 'evaluation')}"
