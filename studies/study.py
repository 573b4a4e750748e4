"""What a study file states before its runs, and what it reads from their stored results.

A study compares *arms*: recipes that differ from one base in a few settings. Runs with the same seed have the same
prompts and the same random numbers, so arms are compared within a seed, and intervals are over seeds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from groupwise.certificates.effect_comparisons import is_share
from groupwise.certificates.effect_plans import AT_EDGE, TUNING_SEEDS, WHOLE, common
from groupwise.certificates.studies import StudyRun, StudyRunResult, is_stale
from groupwise.config.recipe import Recipe
from groupwise.evaluation.interval import LEVEL, mean_interval, mean_p
from groupwise.evaluation.seed_verdicts import (
    FIRST_MODELS_DIFFER,
    LITTLE_ROOM,
    LOOK_LEVEL,
    LOOKS,
    NOT_ENOUGH_RUNS,
    Verdict,
    corrected_p,
    first_models_differ,
    has_little_room,
    verdict,
)
from studies.rates import not_separated

SEEDS = range(5)
"""The seeds of each study, fixed before any run."""
NO_KL = "method.objective.penalties = []"
Results = Mapping[StudyRun, StudyRunResult]
Exact = dict[str, Any]
"""Numbers that are computed without a run, as JSON."""
LEAST_ACCURACY, LEAST_PASSES, LEAST_TOKENS = 0.02, 0.05, 2.0
"""The smallest differences that count, of shares of right answers, of pass@k for a k above 1, and of lengths.

They were stated after the runs of the seeds 0 to 4, and before those of the fresh seeds (studies/tuning.py).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison: a method on the packaged recipe of a task, with settings such as `prompts = 16`."""

    label: str
    method: str
    task: str
    settings: tuple[str, ...] = ()

    def trial(self, seed: int) -> StudyRun:
        """The arm's run with one seed."""
        return StudyRun(self.method, self.task, seed, self.settings)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds, with Student's interval at `level`. `least` is the smallest difference that counts.

    `bases` are the first models of the seeds, where they have several. An estimate of a comparison of methods at one
    learning rate decides nothing, nor does one with a best rate `at_edge` of its grid, or one of a mechanism that had
    nothing to do, so that it has not `acted`. `limits`: the smallest and the largest mean that there can be, of a
    difference while the other side stays. `sign` is -1 where a claim says that the mean lies below 0. `stale`: the
    code of a component has changed since one of its runs; None if the estimate was not made from runs, or does not
    know them.

    `at_rates` are an arm's values at the rates that are left to it (studies/rates.py), its own first, by run and None
    for one that is not made. A difference has its values `at_common` rates, empty ones where runs are `unmade`.

    >>> str(Estimate((1.0, 2.0, 3.0)))
    '2 (-0.484 to 4.48)'
    """

    values: tuple[float, ...]
    least: float = 0.0
    level: float = LEVEL
    bases: tuple[int, ...] = ()
    decides: bool = True
    at_edge: bool = False
    acted: bool = True
    limits: tuple[float, float] = (-math.inf, math.inf)
    sign: int = 1
    stale: bool | None = None
    at_rates: Mapping[str, Mapping[StudyRun, float | None]] = field(default_factory=dict)
    at_common: tuple[tuple[float, ...], ...] = ()
    unmade: frozenset[StudyRun] = frozenset()

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        return mean_interval(self.values, self.level)

    @property
    def excludes_zero(self) -> bool:
        low, high = self.interval
        return low > 0 or high < 0

    @property
    def p(self) -> float:
        """The two-sided p of a mean of 0. A level above 95 % makes it larger, so that 0.05 is its bound."""
        return corrected_p(mean_p(self.values), self.level)

    @property
    def word(self) -> Verdict:
        """The verdict on a mean above 0."""
        return "undecided" if self.obstacle else self._verdict(self.values)

    def _verdict(self, values: tuple[float, ...]) -> Verdict:
        """The verdict by values alone, at the own rates or at others."""
        return verdict(values, self.least, self.level, self.bases)

    @property
    def room(self) -> float:
        """How far the mean can move from 0 to the side of the claim."""
        return self.limits[1] if self.sign > 0 else -self.limits[0]

    @property
    def obstacle(self) -> str:
        """Why these seeds decide nothing, and further ones would not; empty where they can."""
        if not self.acted:
            return "it did not act"
        if self.at_edge:
            return AT_EDGE
        if first_models_differ(self.values, self.least, self.level, self.bases):
            return FIRST_MODELS_DIFFER
        if has_little_room(self.values, self.least, self.room, self.level):
            return LITTLE_ROOM
        met: Iterable[Verdict | None] = (
            self._verdict(x) if x and all(map(math.isfinite, x)) else None for x in self.at_common
        )
        return not_separated(self._verdict(self.values), met)

    @property
    def because(self) -> str:
        """The reason of *undecided*: an obstacle, or a look that is to come; empty after the last one."""
        is_early = self.level == LOOK_LEVEL and len(self.values) < LOOKS[-1] and self.word == "undecided"
        return self.obstacle or NOT_ENOUGH_RUNS * is_early

    def result(self, above: str, below: str) -> str:
        """The word for an interval above 0 or below, if the mean counts; *absent*, or *undecided* and why, otherwise.

        >>> Estimate((1.0, 1.1, 0.9)).result("rises", "falls"), Estimate((-1.0, 1.0)).result("rises", "falls")
        ('*rises*', '*undecided*')
        >>> Estimate((0.01, -0.01, 0.0), least=0.1).result("rises", "falls")
        '*absent*'
        >>> Estimate((0.01, -0.01, 0.0), least=0.1, limits=(-0.9, 0.1)).result("rises", "falls")
        '*undecided*: little room'
        >>> Estimate((1.0, 1.1, 0.9), decides=False).result("rises", "falls")
        '*one rate*'
        """
        if not self.decides:
            return "*one rate*"
        if (estimates := _JUDGED.get()) is not None:
            estimates.append(self)
        because = f": {self.because}" if self.because else ""
        return f"*{above if self.word == 'shown' else below if self.word == 'opposite' else self.word}*{because}"

    @property
    def verdict(self) -> str:
        """The words for a difference that a claim says is above 0."""
        return self.result("shown", "opposite")

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.3g} ({low:.3g} to {high:.3g})"

    @property
    def brief(self) -> str:
        """The mean with the interval, for a sentence, with two digits of the interval's half-width.

        More digits if an end of an interval without 0 would print as 0.

        >>> Estimate((-0.001, 0.001, -0.001)).brief
        '-0.0003 (-0.0032 to 0.0025)'
        """
        low, high = self.interval
        half = (high - low) / 2
        digits = max(0, 1 - math.floor(math.log10(half))) if 0 < half < math.inf else 2
        while self.excludes_zero and 0 in (round(low, digits), round(high, digits)):
            digits += 1
        return "{} ({} to {})".format(*(f"{x:z.{digits}f}" for x in (self.mean, low, high)))

    def stated(self, above: str = "shown", below: str = "opposite") -> str:
        """`brief` with the result, for a sentence.

        >>> Estimate((20.0, 22.0, 24.0)).stated("rises", "falls")
        '22.0 (17.0 to 27.0; *rises*)'
        """
        return f"{self.brief[:-1]}; {self.result(above, below)})"

    @property
    def at_one_rate(self) -> "Estimate":
        """This one as a comparison of methods at one learning rate: it says which of them that rate suits."""
        return replace(self, decides=False)

    def minus(self, other: "Estimate", least: float = 0.0) -> "Estimate":
        """The difference within each seed. `least` is the smallest one that counts, by default this one's."""
        values = _differences(self.values, other.values)
        stale = None if None in (self.stale, other.stale) else self.stale or other.stale
        limits = self.limits[0] - other.mean, self.limits[1] - other.mean
        at_edge = self.at_edge or other.at_edge
        at_common, unmade = self._met(other)
        return replace(self, values=values, least=least or self.least, at_edge=at_edge, limits=limits, stale=stale,
                       at_rates={}, at_common=at_common, unmade=unmade)  # fmt: skip

    def _met(self, other: "Estimate") -> tuple[tuple[tuple[float, ...], ...], frozenset[StudyRun]]:
        """The differences at common rates, also those of a side that is a difference itself, and the unmade runs."""
        found = [_differences(x, other.values) for x in self.at_common]
        found += [_differences(self.values, x) for x in other.at_common]
        unmade = set[StudyRun](self.unmade | other.unmade)
        for rate in common(tuple(self.at_rates), tuple(other.at_rates)):
            one, two = self.at_rates[rate], other.at_rates[rate]
            missing = {run for side in (one, two) for run, x in side.items() if x is None}
            pairs = zip(one.values(), two.values(), strict=True)
            found.append(() if missing else tuple(a - b for a, b in pairs if a is not None and b is not None))
            unmade |= missing
        return tuple(found), frozenset(unmade)

    def claimed(self, sign: int, border: float = 0.0) -> "Estimate":
        """The estimate with the sign of a claim that it lies above the border, or with -1 below: above 0 is claimed."""
        ends = sorted(sign * (x - border) for x in self.limits)
        values, *at_common = (tuple(sign * (x - border) for x in xs) for xs in (self.values, *self.at_common))
        return replace(self, values=values, limits=(ends[0], ends[1]), sign=1, at_common=tuple(at_common))


def _differences(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """Value by value; empty where one side has none."""
    return tuple(a - b for a, b in zip(one, other, strict=True)) if one and other else ()


_JUDGED: ContextVar[list[Estimate] | None] = ContextVar("judged estimates", default=None)


@contextmanager
def judged_estimates() -> Iterator[list[Estimate]]:
    """The estimates of which a verdict is written within this context, for a correction of all together."""
    estimates = list[Estimate]()
    token = _JUDGED.set(estimates)
    try:
        yield estimates
    finally:
        _JUDGED.reset(token)


@dataclass(frozen=True, slots=True)
class Measured:
    """The stored results of a study's arms, for the seeds with which every arm has run.

    `level` is that of the intervals. Seeds start from `first_models` models in turn. Without `decides` the arms share a
    learning rate that may suit one of them. `at_edge` are the arms whose best rate lies at an edge of its grid. `left`
    has each arm at the rates that its tuning seeds leave to it, the own one first.
    """

    arms: Mapping[str, Arm]
    results: Results
    planned_seeds: Sequence[int] = SEEDS
    level: float = LEVEL
    first_models: int = 1
    decides: bool = True
    at_edge: frozenset[str] = frozenset()
    left: Mapping[str, Mapping[str, Arm]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds with which every arm has run."""
        arms = self.arms.values()
        return tuple(seed for seed in self.planned_seeds if all(self.trial(arm, seed) in self.results for arm in arms))

    def trial(self, arm: Arm, seed: int) -> StudyRun:
        """An arm's run with a seed, from the seed's first model."""
        return replace(arm.trial(seed), base=seed % self.first_models)

    def runs(self, arm: str) -> list[StudyRunResult]:
        """The results of an arm, in the order of `seeds`."""
        return [self.results[self.trial(self.arms[arm], seed)] for seed in self.seeds]

    def estimate(self, values: Iterable[float], metric: str = "") -> Estimate:
        """The estimate by one value of each of `seeds`, of a metric or of another number, from all arms.

        What it would be at other rates is not known.
        """
        pairs = combinations(map(tuple, self.left.values()), 2)
        bases = tuple(seed % self.first_models for seed in self.seeds) if self.first_models > 1 else ()
        return Estimate(
            tuple(values),
            level=self.level,
            bases=bases,
            decides=self.decides,
            at_edge=bool(self.at_edge),
            limits=(0.0, 1.0) if is_share(metric) else (-math.inf, math.inf),
            stale=self.stale,
            at_common=((),) if any(common(*pair) for pair in pairs) else (),
        )

    def mean(self, arm: str, metric: str, first: int, last: int) -> Estimate:
        """The mean of a metric over the iterations from `first` to `last`, both included."""

        def value(run: StudyRunResult) -> float:
            return average(points(run, metric, first, last).values())

        trials = {rate: [self.trial(one, seed) for seed in self.seeds] for rate, one in self.left.get(arm, {}).items()}
        at_rates = {
            rate: {run: value(self.results[run]) if run in self.results else None for run in runs}
            for rate, runs in trials.items()
        }
        estimate = self.estimate(map(value, self.runs(arm)), metric)
        return replace(estimate, at_edge=arm in self.at_edge, at_rates=at_rates, at_common=())

    def series(self, arm: str, metric: str) -> list[tuple[int, Estimate]]:
        """The metric at each iteration at which all seeds have it."""
        runs = [points(run, metric, 0, len(run.tokens)) for run in self.runs(arm)]
        common = sorted(set.intersection(*map(set, runs))) if runs else []
        return [(i, Estimate(tuple(run[i] for run in runs))) for i in common]

    def cpu_seconds(self) -> float:
        """The CPU seconds of all runs with complete seeds."""
        return math.fsum(run.cpu_seconds for arm in self.arms for run in self.runs(arm))

    @property
    def stale(self) -> bool:
        """Whether the code of a method has changed since one of the runs."""
        return any(is_stale(run) for arm in self.arms for run in self.runs(arm))


@dataclass(frozen=True, slots=True)
class Choice:
    """What an arm chooses its learning rate by: the mean of a metric over the last iterations, larger is better.

    `settings` are those of the runs of grids and at the best rates, besides the arm's.
    """

    metric: str
    last_iterations: int
    settings: tuple[str, ...] = ()

    def score(self, arm: Arm, results: Results) -> float:
        """The mean of an arm over the tuning seeds: NaN before its runs are stored, -inf without the metric."""
        runs = [results.get(arm.trial(seed)) for seed in TUNING_SEEDS]
        if None in runs:
            return math.nan
        ends = [points(run, self.metric, len(run.tokens) - self.last_iterations + 1, len(run.tokens))
                for run in runs if run is not None]  # fmt: skip
        return math.fsum(average(end.values()) for end in ends) / len(ends) if all(ends) else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study: what runs, and what its page says about the results.

    `parts` are comparisons by name, each with its arms; `exact` computes numbers that need no run. `blocks` returns the
    generated texts of the page by name, that of a part under its name, and the result in a sentence under the study's.
    `rows` are the numbers of the figure, with their head. `draw` draws it onto the panels of a figure; `alt` is its
    alternative text. The first part is needed for all of them. `bases` makes the models of each seed that settings
    name, such as `@base`. `requires` raises MissingRequirement where the runs need something that is not installed.
    `use` are files of parts that the runs load. `tuned` are the parts that compare methods: each of their arms chooses
    its learning rate (studies/tuning.py). `seeds` are those of parts that have others than `SEEDS`: they start from
    three first models in turn, and intervals have the level of a look.
    """

    name: str
    page: str
    parts: Mapping[str, Mapping[str, Arm]]
    metrics: tuple[str, ...]
    blocks: Callable[[Mapping[str, Measured], Exact], dict[str, str]]
    rows: Callable[[Mapping[str, Measured], Exact], list[tuple[object, ...]]]
    draw: Callable[[Sequence[Any], Mapping[str, Measured], Exact], None]
    alt: str
    panels: int = 1
    exact: Callable[[], Exact] = dict
    bases: Mapping[str, Callable[[int, Path], Recipe]] = field(default_factory=dict)
    requires: Callable[[], object] = dict
    use: tuple[str, ...] = ()
    tuned: Mapping[str, Choice] = field(default_factory=dict)
    seeds: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def trials(self, seeds: Iterable[int], parts: Iterable[str] = ()) -> dict[StudyRun, set[str]]:
        """The runs of some parts, or of all, in order, each once, with the metrics that are stored.

        A part with other seeds runs with those, and only where `seeds` has all of `SEEDS`.
        """
        listed, named = list(seeds), list(parts) or list(self.parts)
        arms = [arm for part in named if part not in self.seeds for arm in self.parts[part].values()]
        runs = [arm.trial(seed) for seed in listed for arm in arms]
        for part in named if set(SEEDS) <= set(listed) else ():
            own = self._part(part, {}, listed)
            runs += [own.trial(arm, seed) for seed in self.seeds.get(part, ()) for arm in own.arms.values()]
        return {run: set(self.metrics) for run in runs}

    def measured(self, results: Results, seeds: Sequence[int] = SEEDS) -> dict[str, Measured]:
        """The results of each part that has been run with at least one of the seeds."""
        parts = {name: self._part(name, results, seeds) for name in self.parts}
        return {name: part for name, part in parts.items() if part.seeds}

    def _part(self, name: str, results: Results, seeds: Sequence[int]) -> Measured:
        if name in self.seeds:
            return Measured(self.parts[name], results, self.seeds[name], LOOK_LEVEL, WHOLE.bases)
        return Measured(self.parts[name], results, seeds, decides=name not in self.tuned)

    def not_run(self, part: str) -> str:
        """The text of a part without results."""
        runs = len(self.trials(SEEDS, [part]))
        return f"*Not run yet.* `python -m studies {self.name} --part {part}` makes these {runs} runs."

    def svg(self, home: Path) -> Path:
        """The file of the figure. The CSV file of its numbers has the same name."""
        return home / Path(self.page).with_suffix(".svg")


def points(run: StudyRunResult, metric: str, first: int, last: int) -> dict[int, float]:
    """The values of a metric from iteration `first` to `last`."""
    return {i: x for i, x in run.metrics.get(metric, {}).items() if first <= i <= last}


def average(values: Iterable[float]) -> float:
    """The mean; NaN without values."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else math.nan


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def cost(measured: Measured) -> str:
    """One line: the runs, their CPU time, and whether they are stale."""
    runs, seconds = len(measured.arms) * len(measured.seeds), measured.cpu_seconds()
    stale = " *Stale*: the code of a component has changed since." if measured.stale else ""
    each = f"{seconds / max(runs, 1):.0f} CPU seconds per run"
    return f"Cost: {runs} runs, {seconds / 60:.0f} CPU minutes, {each}.{stale}"
