"""Held-out accuracy for each value of a column of the rows, such as the level or the subject of a problem."""

from collections.abc import Sequence
from typing import Any

from groupwise.core import Usage
from groupwise.data import ACCURACY, SCORE, Prompt, Rollout
from groupwise.evaluation.accuracy import IntervalEstimate, average, has_outcomes, has_scores, has_verdicts, mean_score

__all__ = ["check_column", "figures_by", "scores_by"]

MOST = 32
"""The most different values of a column, since each is a metric of the run."""
LONGEST = 40
"""The most characters of a value, since it is in a metric's name."""


def by_value(rollouts: Sequence[Rollout], column: str) -> dict[str, list[Rollout]]:
    """The rollouts for each value of a column, numbers in their order. Rows without a value are left out."""
    groups: dict[Any, list[Rollout]] = {}
    for rollout in rollouts:
        if (value := rollout.draw.prompt.row.get(column)) is not None:
            groups.setdefault(value, []).append(rollout)
    in_order = sorted(groups.items(), key=lambda x: (0, x[0], "") if isinstance(x[0], int | float) else (1, 0, x[0]))
    return {f"{column}={value}": group for value, group in in_order}


def figures_by(rollouts: Sequence[Rollout], column: str) -> dict[str, tuple[int, IntervalEstimate]]:
    """For each value of a column: the number of problems, and their accuracy, or else their mean score.

    Empty without a column, and if no answer could be judged.
    """
    if not has_verdicts(rollouts):
        return {}
    figure = average if has_outcomes(rollouts) else mean_score
    return {name: (len(group), figure(group)) for name, group in by_value(rollouts, column).items()}


def scores_by(rollouts: Sequence[Rollout], column: str) -> dict[str, float]:
    """The metrics of a run for each value of a column: `eval/accuracy/level=3`, and `eval/score/level=3`."""
    metrics: dict[str, float] = {}
    for name, group in by_value(rollouts, column).items():
        if has_verdicts(rollouts) and has_outcomes(rollouts):
            metrics[f"{ACCURACY}/{name}"] = average(group).value
        if has_scores(rollouts):
            metrics[f"{SCORE}/{name}"] = mean_score(group).value
    return metrics


def check_column(column: str, prompts: Sequence[Prompt]) -> None:
    """`Usage` if the held-out problems have no values in the column, more than `MOST`, or other than short texts."""
    if not column or not prompts:
        return
    values = [prompt.row[column] for prompt in prompts if prompt.row.get(column) is not None]
    fix = "name another column, or leave it out"
    if not values:
        has = ", ".join(sorted({str(name) for prompt in prompts for name in prompt.row})) or "no columns"
        what = f"evaluate.by_column is {column!r}, and no held-out problem has a value in this column"
        raise Usage(what, evidence=f"the rows have {has}", fix=fix)
    for value in values:
        if not isinstance(value, str | int | float) or len(str(value)) > LONGEST or not str(value).isprintable():
            evidence = f"a value is {str(value)[:LONGEST]!r}, not a number or a text of at most {LONGEST} characters"
            raise Usage(f"evaluate.by_column is {column!r}, whose values are no names", evidence=evidence, fix=fix)
    if len(set(values)) > MOST:
        what = f"evaluate.by_column is {column!r}, a column with {len(set(values)):,} different values"
        raise Usage(what, evidence=f"{MOST} at most: each is a metric", fix=fix)
