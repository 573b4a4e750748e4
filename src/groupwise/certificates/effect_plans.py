"""The runs that measure an effect: both sides choose a learning rate on tuning seeds, then meet on fresh seeds.

A learning rate is part of a method: a method that clips more takes smaller steps, and wants a larger rate. So each side
of a comparison has a grid around its parent's rate, and one of the bounds that its paper tunes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from groupwise.certificates.studies import HELD_OUT, StudyRun, StudyRunResult
from groupwise.config.registry import methods
from groupwise.data import ACCURACY, ACCURACY_GREEDY
from groupwise.evaluation.seed_verdicts import LOOKS
from groupwise.methods import ExpectedEffect, reference_of
from groupwise.objective import policy_gradient

T = TypeVar("T")
TUNING_SEEDS = (90, 91)
"""Seeds on which rates and bounds are chosen. No comparison has them."""
FIRST_SEED = 100
"""The first of the fresh seeds, on which both sides are compared."""
PROBLEMS = "evaluate.problems = 512"
"""With 128 answers the sampling noise of an accuracy is 0.04, as large as many effects."""
EVERY = "evaluate.every = 2"
"""For comparisons of a held-out metric at equal tokens, which interpolate between evaluations."""
SKILLS = (ACCURACY, ACCURACY_GREEDY)
Results = Mapping[StudyRun, StudyRunResult]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: factors of the parent's rate, the looks (numbers of fresh seeds), and first models."""

    factors: tuple[float, ...]
    looks: tuple[int, ...]
    bases: int = 1


WHOLE = Plan((1 / 3, 1, 3, 10), LOOKS, bases=3)
"""The plan of the best known methods. Seeds of one first model say nothing of another one, so there are three."""
SHORT = Plan((1, 3), LOOKS[:1])
"""The plan of all others: two rates, and the first look. An open effect is undecided, with the seeds that it needs."""


def plan_of(effect: ExpectedEffect) -> Plan:
    """The plan of an effect."""
    return WHOLE if effect.plan == "whole" else SHORT


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a method on a task, and the settings that it chooses among, by rising rate."""

    method: str
    task: str
    choices: tuple[tuple[str, ...], ...]

    def run(self, seed: int, settings: tuple[str, ...], base: int = 0) -> StudyRun:
        return StudyRun(self.method, self.task, seed, settings, base)

    def tuning_runs(self) -> list[StudyRun]:
        """The runs of the grid."""
        return [self.run(seed, settings) for settings in self.choices for seed in TUNING_SEEDS]

    def scores(self, metric: str, results: Results) -> list[float]:
        """The mean of a metric over the tuning seeds for each choice; NaN for one whose runs are not complete.

        A run that collapsed counts with its last value, and as -inf if it has none.
        """
        return [self._score(settings, metric, results) for settings in self.choices]

    def _score(self, settings: tuple[str, ...], metric: str, results: Results) -> float:
        runs = [results.get(self.run(seed, settings)) for seed in TUNING_SEEDS]
        values = [math.nan if run is None else run.value(metric, len(run.tokens)) for run in runs]
        if None in runs:
            return math.nan
        return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else -math.inf

    def chosen(self, metric: str, results: Results) -> tuple[str, ...] | None:
        """The settings with the largest score, of equal ones those with the smallest rate; None before the grid ran."""
        return best(self.choices, self.scores(metric, results))


def best(choices: Sequence[T], scores: Sequence[float]) -> T | None:
    """The choice with the largest score, the first of equal ones; None while a score is NaN, as its runs are missing.

    >>> best(("1e-4", "3e-4", "1e-3"), (0.5, 0.5, 0.1)), best(("1e-4", "3e-4"), (0.5, math.nan))
    ('1e-4', None)
    """
    return None if any(map(math.isnan, scores)) else choices[scores.index(max(scores))]


@cache
def sides_of(method: str, effect: ExpectedEffect) -> tuple[Side, Side]:
    """Both sides of a comparison: the method's and its parent's. The rates are multiples of the parent's."""
    common = merged(effect.settings, evaluation_of(effect))
    parent = merged(common, sizes_of(effect.parent))
    own = merged(common, sizes_of(method), effect.own_settings)
    rate = StudyRun(effect.parent, effect.task, 0, parent).recipe().optimizer.lr
    rates = [f"optimizer.lr = {rate * factor:.3g}" for factor in plan_of(effect).factors]
    return (
        Side(method, effect.task, tuple(choices(method, own, rates))),
        Side(effect.parent, effect.task, tuple(choices(effect.parent, parent, rates))),
    )


def choices(method: str, settings: tuple[str, ...], rates: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The settings at each rate, with each group of the constants that the method's paper tunes.

    Constants that the effect sets are not tuned.
    """
    tuned = reference_of(methods()[method]).tuned_settings
    is_set = {path_of(line) for line in settings} & {path_of(line) for group in tuned for line in group}
    for rate in rates:
        for group in () if is_set else tuned:
            yield merged(settings, (rate,), group)
        if is_set or not tuned:
            yield merged(settings, (rate,))


def evaluation_of(effect: ExpectedEffect) -> tuple[str, ...]:
    """The settings of the held-out evaluation."""
    is_interpolated = effect.runs_matched_by == "tokens" and effect.metric.startswith(HELD_OUT)
    return (PROBLEMS, EVERY) if is_interpolated else (PROBLEMS,)


def sizes_of(method: str) -> tuple[str, ...]:
    """The sizes that a method's file fixes, in place of those of all runs.

    A method without a ratio takes one step per iteration: a second one would be off-policy. The groups of a method of
    stored answers are as large as its rows say.
    """
    value = methods()[method]()
    steps = ("method.minibatches = 1",) if value.objective.surrogate is policy_gradient else ()
    is_stored = getattr(value.strategy, "writes_stored_answers", False)
    return (*steps, f"method.group_size = {value.group_size}") if is_stored else steps


def merged(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Settings, each field once, with its last value.

    >>> merged(("prompts = 4", "iterations = 2"), ("prompts = 8",))
    ('prompts = 8', 'iterations = 2')
    """
    return tuple({path_of(line): line for group in groups for line in group}.values())


def path_of(line: str) -> str:
    """The field of a setting `FIELD = VALUE`."""
    return line.partition(" = ")[0]


def tuning_metric(effect: ExpectedEffect) -> str:
    """The metric by which both sides choose: held-out accuracy, by the effect's own sampling where it names one.

    A choice by length, entropy or a clip fraction would favour rates at which nothing is learned.
    """
    return effect.kept or (effect.metric if effect.metric in SKILLS else SKILLS[1])


def pair_of(method: str, effect: ExpectedEffect, seed: int, results: Results) -> tuple[StudyRun, StudyRun] | None:
    """The runs of both sides with a fresh seed, at their chosen settings; None before both grids ran."""
    (_, base), metric = divmod(seed, plan_of(effect).bases), tuning_metric(effect)
    own, parent = sides_of(method, effect)
    settings, others = own.chosen(metric, results), parent.chosen(metric, results)
    if settings is None or others is None:
        return None
    return own.run(seed, settings, base), parent.run(seed, others, base)
