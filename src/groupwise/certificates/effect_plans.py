"""The runs that measure an effect: both sides choose a learning rate on tuning seeds, then meet on fresh seeds.

A learning rate is part of a method: a method that clips more takes smaller steps, and wants a larger rate. So each side
of a comparison has a grid around its parent's rate, and one of the bounds that its paper tunes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from groupwise.certificates.studies import HELD_OUT, StudyRun, StudyRunResult
from groupwise.config.registry import methods
from groupwise.data import ACCURACY, ACCURACY_GREEDY, EVAL_PAIR_ACCURACY
from groupwise.evaluation.seed_verdicts import LOOKS
from groupwise.methods import ExpectedEffect, reference_of
from groupwise.methods.reference import FIRST_SEED as FIRST_SEED
from groupwise.objective import policy_gradient

T = TypeVar("T")
TUNING_SEEDS = (90, 91)
"""Seeds on which rates and bounds are chosen. No comparison has them."""
PROBLEMS = "evaluate.problems = 512"
"""With 128 answers the sampling noise of an accuracy is 0.04, as large as many effects."""
EVERY = "evaluate.every = 2"
"""For comparisons of a held-out metric at equal tokens, which interpolate between evaluations."""
SKILLS = (ACCURACY, ACCURACY_GREEDY, EVAL_PAIR_ACCURACY)
RATE = "optimizer.lr = "
FURTHER = 2
"""How many times a grid is extended at an edge."""
AT_EDGE = "a best rate at an edge"
NEAR = 0.02
"""The least difference of held-out accuracy by which the tuning seeds separate two rates."""
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
    """One side of a comparison: a method on a task, and what it chooses among.

    Each rate is one of `factors` times `rate`, with each of `constants`, the groups of settings that the method's paper
    tunes. The metric is larger where it is better.
    """

    method: str
    task: str
    metric: str
    rate: float
    factors: tuple[float, ...]
    constants: tuple[tuple[str, ...], ...]
    settings: tuple[str, ...]

    def run(self, seed: int, settings: tuple[str, ...], base: int = 0) -> StudyRun:
        return StudyRun(self.method, self.task, seed, settings, base)

    def choices(self, results: Results) -> tuple[tuple[str, ...], ...]:
        """The settings by rising rate: those of the grid, and of the rates beyond an edge that is its best."""
        return self._at(extended(self.factors, lambda factors: self._best_factor(factors, results)))

    def tuning_runs(self, results: Results) -> list[StudyRun]:
        """The runs of the grid."""
        return [self.run(seed, settings) for settings in self.choices(results) for seed in TUNING_SEEDS]

    def scores(self, choices: Iterable[tuple[str, ...]], results: Results) -> list[float]:
        """The mean of the metric over the tuning seeds for each choice; NaN for one whose runs are not complete.

        A run that collapsed counts with its last value, and as -inf if it has none.
        """
        return [self._score(settings, results) for settings in choices]

    def chosen(self, results: Results) -> tuple[str, ...] | None:
        """The settings with the largest score, of equal ones those with the smallest rate; None before the grid ran."""
        choices = self.choices(results)
        return best(choices, self.scores(choices, results))

    def left(self, results: Results) -> dict[float, tuple[str, ...]]:
        """The chosen rate, and those that the tuning seeds do not separate from it, with the best settings of each.

        Empty before the grid ran.
        """
        choices = self.choices(results)
        scores = dict(zip(choices, self.scores(choices, results), strict=True))
        near = sorted(left(choices, list(scores.values()), NEAR), key=lambda settings: -scores[settings])
        found: dict[float, tuple[str, ...]] = {}
        for settings in near:
            found.setdefault(rate_of(settings), settings)
        return found

    def is_at_edge(self, results: Results) -> bool:
        """Whether the best rate lies at an edge of the rates that have run on the tuning seeds, as far as is known.

        These are the grid, although it was extended there as far as it may be, and the rates of other comparisons with
        equal runs; one of those that is better than the grid's best is no better known. False before the grid ran.
        """
        chosen = self.chosen(results)
        if chosen is None:
            return False
        rates = sorted({rate_of(line) for line in self.choices(results)} | self._other_rates(results))
        choices = [merged(self.settings, (setting_of(rate),), group) for rate in rates for group in self.constants]
        scores = [-math.inf if math.isnan(x) else x for x in self.scores(choices, results)]
        taken = best(choices, scores)
        return taken != chosen or is_at_edge(rates, rate_of(chosen))

    def _other_rates(self, results: Results) -> set[float]:
        """The rates at which other comparisons have equal runs on the tuning seeds."""
        runs = [run for run in results if (run.method, run.task) == (self.method, self.task)]
        rates = {rate_of(run.settings) for run in runs if any(line.startswith(RATE) for line in run.settings)}
        equal = {
            rate: [merged(self.settings, (setting_of(rate),), group) for group in self.constants] for rate in rates
        }
        return {rate for rate, choices in equal.items() if not any(map(math.isnan, self.scores(choices, results)))}

    def _at(self, factors: Iterable[float]) -> tuple[tuple[str, ...], ...]:
        rates = [setting_of(self.rate * factor) for factor in factors]
        return tuple(merged(self.settings, (rate,), group) for rate in rates for group in self.constants)

    def _best_factor(self, factors: tuple[float, ...], results: Results) -> float | None:
        choices = self._at(factors)
        taken = best(choices, self.scores(choices, results))
        return None if taken is None else factors[choices.index(taken) // len(self.constants)]

    def _score(self, settings: tuple[str, ...], results: Results) -> float:
        runs = [results.get(self.run(seed, settings)) for seed in TUNING_SEEDS]
        values = [math.nan if run is None else run.value(self.metric, len(run.tokens)) for run in runs]
        if None in runs:
            return math.nan
        return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else -math.inf


def extended(factors: tuple[float, ...], best_of: Callable[[tuple[float, ...]], float | None]) -> tuple[float, ...]:
    """A grid with a further factor of 3 beyond an edge that is its best, up to `FURTHER` times at each edge.

    A best rate at an edge is no best rate: a larger or a smaller one may be better. `best_of` returns the best of some
    factors in rising order, None before their runs are complete.

    >>> extended((1, 3), lambda factors: min(factors)), extended((1, 3, 9), lambda factors: 3)
    ((0.1111111111111111, 0.3333333333333333, 1, 3), (1, 3, 9))
    """
    smallest, largest = factors[0] / 3**FURTHER, factors[-1] * 3**FURTHER
    while (top := best_of(factors)) is not None:
        if top == factors[0] and top > 1.01 * smallest:
            factors = (top / 3, *factors)
        elif top == factors[-1] and top < 0.99 * largest:
            factors = (*factors, 3 * top)
        else:
            break
    return factors


def is_at_edge(grid: Sequence[T], taken: T | None) -> bool:
    """Whether the best of a grid that was extended lies at its edge: a better one may lie beyond it.

    One choice is no grid. `AT_EDGE` is the reason of the verdict *undecided*.

    >>> is_at_edge((1, 3, 9), 9), is_at_edge((1, 3, 9), 3), is_at_edge((1,), 1), is_at_edge((1, 3), None)
    (True, False, False, False)
    """
    return len(grid) > 1 and taken in (grid[0], grid[-1])


def best(choices: Sequence[T], scores: Sequence[float]) -> T | None:
    """The choice with the largest score, the first of equal ones; None while a score is NaN, as its runs are missing.

    >>> best(("1e-4", "3e-4", "1e-3"), (0.5, 0.5, 0.1)), best(("1e-4", "3e-4"), (0.5, math.nan))
    ('1e-4', None)
    """
    return None if any(map(math.isnan, scores)) else choices[scores.index(max(scores))]


def left(choices: Sequence[T], scores: Sequence[float], least: float) -> tuple[T, ...]:
    """The best choice, then the others whose score is less than `least` below its own; none while a score is missing.

    >>> left((1e-4, 3e-4, 1e-3), (0.50, 0.51, 0.2), 0.02), left((1e-4, 3e-4), (0.5, float("nan")), 0.02)
    ((0.0003, 0.0001), ())
    """
    taken = best(choices, scores)
    if taken is None:
        return ()
    near = (x for x, score in zip(choices, scores, strict=True) if max(scores) - score < least)
    return (taken, *(x for x in near if x != taken))


def common(one: Sequence[T], other: Sequence[T]) -> list[T]:
    """The rates that are left to both sides, where these take different ones.

    >>> common((3e-4, 1e-4), (1e-4,)), common((3e-4, 1e-4), (3e-4,)), common((3e-4,), (1e-4,))
    ([0.0001], [], [])
    """
    return [] if one[:1] == other[:1] else [rate for rate in one if rate in other]


@cache
def sides_of(method: str, effect: ExpectedEffect) -> tuple[Side, Side]:
    """Both sides of a comparison: the method's and its parent's. The rates are multiples of the parent's."""
    common = merged(effect.settings, evaluation_of(effect))
    parent = merged(common, sizes_of(effect.parent))
    own = merged(common, sizes_of(method), effect.own_settings)
    rate = StudyRun(effect.parent, effect.task, 0, parent).recipe().optimizer.lr
    what = tuning_metric(effect), rate, plan_of(effect).factors
    own_side, parent_side = (
        Side(name, effect.task, *what, tuned_constants(name, settings), settings)
        for name, settings in ((method, own), (effect.parent, parent))
    )
    return own_side, parent_side


def tuned_constants(method: str, settings: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The groups of constants that a method's paper tunes, one empty group without any.

    Constants that the effect sets are not tuned.
    """
    tuned = reference_of(methods()[method]).tuned_settings
    is_set = {path_of(line) for line in settings} & {path_of(line) for group in tuned for line in group}
    return ((),) if is_set or not tuned else tuple(tuned)


def evaluation_of(effect: ExpectedEffect) -> tuple[str, ...]:
    """The settings of the held-out evaluation."""
    is_interpolated = effect.runs_matched_by == "tokens" and effect.metric.startswith(HELD_OUT)
    return (PROBLEMS, EVERY) if is_interpolated else (PROBLEMS,)


def sizes_of(method: str) -> tuple[str, ...]:
    """The sizes that a method's file fixes, in place of those of all runs.

    A method that samples and has no ratio takes one step per iteration: a second one would be off-policy. The groups of
    a method of stored answers are as large as its rows say, and no step of it is off-policy.
    """
    value = methods()[method]()
    if getattr(value.strategy, "writes_stored_answers", False):
        return (f"method.group_size = {value.group_size}",)
    return ("method.minibatches = 1",) if value.objective.surrogate is policy_gradient else ()


def merged(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Settings, each field once, with its last value.

    >>> merged(("prompts = 4", "iterations = 2"), ("prompts = 8",))
    ('prompts = 8', 'iterations = 2')
    """
    return tuple({path_of(line): line for group in groups for line in group}.values())


def setting_of(rate: float) -> str:
    """The setting of a learning rate."""
    return f"{RATE}{rate:.3g}"


def rate_of(settings: Iterable[str]) -> float:
    """The learning rate of the settings of a choice.

    >>> rate_of(("prompts = 8", setting_of(1 / 3)))
    0.333
    """
    return next(float(line.removeprefix(RATE)) for line in settings if line.startswith(RATE))


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
    _, base = divmod(seed, plan_of(effect).bases)
    own, parent = sides_of(method, effect)
    settings, others = own.chosen(results), parent.chosen(results)
    if settings is None or others is None:
        return None
    return own.run(seed, settings, base), parent.run(seed, others, base)
