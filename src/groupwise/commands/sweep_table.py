"""The tables of a sweep: one row for each run, and the mean over the seeds of runs that differ in nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from groupwise.data.metric_definitions import INTERVALS
from groupwise.report.read_run import ReportRun
from groupwise.report.run_warnings import leading

SEED = "seed"
NONE = "-"
"""The text of a table's cell without a number."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepResult:
    """A run of a sweep: the values of the swept fields, and whether the run finished."""

    values: tuple[tuple[str, str], ...]
    run: ReportRun
    finished: bool

    @property
    def figure(self) -> str:
        """The metric that the tables show: the run's leading one; or empty."""
        return leading(self.run.metrics) or ""

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last value of the metric."""
        value = self.run.metrics[self.figure].finite.metric_values
        return float(value[0]), float(value[-1])

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The values of the swept fields without the seed."""
        return tuple((path, value) for path, value in self.values if path != SEED)


def run_rows(results: Sequence[SweepResult]) -> list[list[str]]:
    """A row for each run: its values, the first and last figure, and the last one's interval over problems."""
    fields = [path for path, _ in results[0].values] or ["run"] if results else []
    rows = [[*fields, "figure", "first", "last", "95 % over problems", "iterations"]]
    for result in results:
        values = [value for _, value in result.values] or [result.run.name]
        cells = [result.figure, *map(formatted, result.ends), interval(result)] if result.figure else [NONE] * 4
        rows.append([*values, *cells, str(result.run.last) + " (not finished)" * (not result.finished)])
    return rows


def seed_rows(results: Sequence[SweepResult]) -> list[list[str]]:
    """A row for each setting that ran with several seeds: means, and the range of the last figure.

    Only finished runs count: `2 of 3` seeds says that one has not finished, for example because it diverged. The means
    of such a row are optimistic. Empty if the seed was not swept.
    """
    groups: dict[tuple[tuple[str, str], ...], list[SweepResult]] = {}
    for result in results:
        groups.setdefault(result.settings, []).append(result)
    groups = {settings: group for settings, group in groups.items() if len(group) > 1}
    if not groups:
        return []
    rows = [[*(path for path, _ in next(iter(groups))), "figure", "seeds", "mean first", "mean last", "range of last"]]
    for settings, group in groups.items():
        finished = [result for result in group if result.finished and result.figure]
        seeds = str(len(group)) if len(finished) == len(group) else f"{len(finished)} of {len(group)}"
        values = [value for _, value in settings]
        for figure in dict.fromkeys(result.figure for result in finished) or [NONE]:
            ends = [result.ends for result in finished if result.figure == figure]
            rows.append([*values, figure, seeds, *(means(ends) if ends else [NONE] * 3)])
    return rows


def means(ends: Sequence[tuple[float, float]]) -> list[str]:
    """The cells of runs with several seeds: mean first value, mean last value, and the range of last values.

    >>> means([(0.25, 0.75), (0.25, 1.0)])
    ['0.250', '0.875', '0.750 to 1.000']
    """
    first, last = zip(*ends)
    return [formatted(fmean(first)), formatted(fmean(last)), f"{formatted(min(last))} to {formatted(max(last))}"]


def interval(result: SweepResult) -> str:
    """The 95 % interval of the last figure over its problems; a dash if the metric has none."""
    metrics = result.run.metrics
    ends = [metrics[end].finite.metric_values[-1:] for end in INTERVALS.get(result.figure, ()) if end in metrics]
    return f"{formatted(ends[0][0])} to {formatted(ends[1][0])}" if len(ends) == 2 and all(map(len, ends)) else NONE


def formatted(value: float) -> str:
    """A figure with three decimals."""
    return f"{value:.3f}"
