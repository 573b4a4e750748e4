"""Some stored runs again, drawn at random, to see that they repeat: `--fresh DIR --share 0.1 --draw-seed N`."""

import math
from collections.abc import Iterable, Iterator, Mapping
from random import Random

from groupwise.certificates.studies import StudyRun, StudyRunResult

Results = Mapping[StudyRun, StudyRunResult]


def drawn(runs: Iterable[StudyRun], share: float, seed: int) -> list[StudyRun]:
    """A share of the runs, rounded up, drawn by a seed. The order of the runs does not matter.

    >>> runs = [StudyRun("grpo", "coin", seed) for seed in range(20)]
    >>> len(drawn(runs, 0.1, 7)), drawn(runs, 0.1, 7) == drawn(runs[::-1], 0.1, 7)
    (2, True)
    """
    ordered = sorted(runs, key=repr)
    return Random(seed).sample(ordered, math.ceil(share * len(ordered)))


def differences(stored: Results, again: Results) -> Iterator[str]:
    """A line for each run that was made again: equal to the last digit, or the metric that differs the most."""
    equal = 0
    for run in stored.keys() & again.keys():
        gap, where = max(_gaps(stored[run], again[run]), default=(0.0, ""))
        equal += gap == 0
        if gap:
            yield f"{run.task} {run.method} seed {run.seed}: {where} differs by {gap:.3g}"
    yield f"{equal} of {len(stored.keys() & again.keys())} runs are equal to the last stored digit"


def _gaps(a: StudyRunResult, b: StudyRunResult) -> Iterator[tuple[float, str]]:
    """The difference of each value that both runs have, and of a value that one lacks: infinite."""
    for name in a.metrics.keys() | b.metrics.keys():
        xs, ys = a.metrics.get(name, {}), b.metrics.get(name, {})
        for i in xs.keys() | ys.keys():
            yield abs(xs.get(i, math.inf) - ys.get(i, -math.inf)), f"{name} at iteration {i}"
