"""A method compared with its parent over fresh seeds: values, verdict, and the reasons why there is none."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from groupwise.certificates.effect_plans import (
    AT_EDGE,
    SKILLS,
    TUNING_SEEDS,
    Results,
    common,
    pair_of,
    plan_of,
    sides_of,
    tuning_metric,
)
from groupwise.certificates.studies import RESULTS, StudyRunResult, is_stale, read_results
from groupwise.core import counted
from groupwise.data import ACCURACY, ACCURACY_GREEDY, EVAL_PAIR_ACCURACY, NO_SIGNAL
from groupwise.evaluation.interval import mean_interval, mean_p
from groupwise.evaluation.seed_verdicts import (
    FIRST_MODELS_DIFFER,
    LITTLE_ROOM,
    LOOK_LEVEL,
    LOOKS,
    NOT_SEPARATED,
    Verdict,
    corrected_p,
    first_models_differ,
    has_little_room,
    means_differ,
    not_worse,
    verdict,
)
from groupwise.evaluation.seeds_to_decide import seeds_to_decide, seeds_to_keep
from groupwise.methods import ExpectedEffect, PaperReference

SHARES = (
    ACCURACY, EVAL_PAIR_ACCURACY, NO_SIGNAL, "eval/counts/", "eval/pass@", "eval/subscores", "subscores/", "outcome/",
    "groups/", "clip_ratio/",
)  # fmt: skip
"""Prefixes of metrics from 0 to 1."""
HARDLY_LEARNS = "the parent hardly learns"
OTHER_ACCURACY = {ACCURACY: ACCURACY_GREEDY, ACCURACY_GREEDY: ACCURACY}
"""The other held-out accuracy of the same runs."""


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1.

    >>> is_share("eval/accuracy"), is_share("entropy")
    (True, False)
    """
    return metric.startswith(SHARES)


@dataclass(frozen=True, slots=True)
class EffectComparison:
    """A method's metric and its parent's for each fresh seed, at the settings that each side chose.

    `kept_differences` are those of the metric that the method must keep, `other_differences` those of the other
    held-out accuracy, sampled for greedy and greedy for sampled, `acted_values` the figure of the mechanism, NaN if a
    run did not store it, `parent_gain` how much held-out accuracy the parent gains by training, and `bases` the first
    model of each seed. `cpu_ratio` are the method's CPU seconds by its parent's, at equal tokens where these match the
    runs. `at_edge`: the best rate of a side lies at an edge of its grid. `at_common` are the mean differences on the
    tuning seeds at the rates that are left to both sides, where these chose different ones; NaN without the metric.
    `stale`: code or model has changed since one of the runs.
    """

    expected_effect: ExpectedEffect
    method_values: tuple[float, ...]
    parent_values: tuple[float, ...]
    kept_differences: tuple[float, ...] = ()
    other_differences: tuple[float, ...] = ()
    acted_values: tuple[float, ...] = ()
    parent_gain: float | None = None
    bases: tuple[int, ...] = ()
    cpu_ratio: float = math.nan
    at_edge: bool = False
    at_common: tuple[float, ...] = ()
    stale: bool = False

    @property
    def differences(self) -> tuple[float, ...]:
        """The difference of the metric between the method and its parent, for each seed."""
        return tuple(a - b for a, b in zip(self.method_values, self.parent_values, strict=True))

    @property
    def claimed(self) -> tuple[float, ...]:
        """The differences with the sign of the claim: above 0 is what the effect states."""
        sign = 1 if self.expected_effect.direction == "up" else -1
        return tuple(sign * x for x in self.differences)

    @property
    def mean(self) -> float:
        return fmean(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """Student's interval of the mean difference over seeds, paired, at `LOOK_LEVEL`."""
        return mean_interval(self.differences, LOOK_LEVEL)

    @property
    def other_interval(self) -> tuple[float, float]:
        """The interval of the mean difference of the other accuracy."""
        return mean_interval(self.other_differences, LOOK_LEVEL)

    @property
    def acted(self) -> float | None:
        """The mean figure of the mechanism; None without one."""
        return fmean(self.acted_values) if self.acted_values else None

    @property
    def room(self) -> float | None:
        """How far the metric could move from the parent's mean; None for a metric without a bound."""
        if not is_share(self.expected_effect.metric):
            return None
        parent = fmean(self.parent_values)
        return 1 - parent if self.expected_effect.direction == "up" else parent

    @property
    def _room(self) -> float:
        return math.inf if self.room is None else self.room

    @property
    def obstacle(self) -> str:
        """Why the runs decide nothing, and more of them would not; empty where they can."""
        effect, least = self.expected_effect, self.expected_effect.min_difference
        if self._room < least:
            return "no room"
        if self.acted is not None and math.isnan(self.acted):
            return "acted: not stored"
        if self.acted is not None and self.acted < effect.acted_least:
            return "it did not act"
        if self.parent_gain is not None and self.parent_gain < 0 and not is_loss(effect):
            return "the parent unlearns"
        if self.at_edge:
            return AT_EDGE
        if not any(self.differences):
            return "equal runs"
        return self._first_models or self._rates or self._no_absence

    @property
    def _rates(self) -> str:
        """Whether the sides' rates may be what differs: at a common rate the difference turns, or counts no more."""
        sign, least = math.copysign(1, self.mean), self.expected_effect.min_difference
        is_decided = self._claim in ("shown", "opposite")
        return NOT_SEPARATED * (is_decided and not all(sign * x >= least for x in self.at_common))

    @property
    def _first_models(self) -> str:
        """Whether the first models differ too much for one word, although all looks have run."""
        values = self.differences, self.expected_effect.min_difference, LOOK_LEVEL, self.bases
        is_open = self._claim not in ("shown", "opposite")
        return FIRST_MODELS_DIFFER * (first_models_differ(*values) or (is_open and means_differ(*values)))

    @property
    def _no_absence(self) -> str:
        """Why an interval of *absent* does not say so: a ceiling, or a parent from which the method cannot differ."""
        effect, least = self.expected_effect, self.expected_effect.min_difference
        if self._claim != "absent":
            return ""
        if has_little_room(self.differences, least, self._room, LOOK_LEVEL):
            return LITTLE_ROOM
        is_gain = effect.metric in SKILLS and not is_loss(effect)  # a length or an entropy is no gain, nor is a loss
        return HARDLY_LEARNS * (is_gain and self.parent_gain is not None and self.parent_gain < least)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim. It needs every first model on one side, and what the method should keep."""
        effect, claim = self.expected_effect, self._claim
        if self.obstacle:
            return "undecided"
        kept = not_worse(self.kept_differences, effect.kept_margin, LOOK_LEVEL) if self.kept_differences else "shown"
        if kept == "opposite":
            return "opposite"
        return "undecided" if claim == "shown" and kept == "undecided" else claim

    @property
    def _claim(self) -> Verdict:
        """The verdict of the differences alone."""
        return verdict(self.claimed, self.expected_effect.min_difference, LOOK_LEVEL, self.bases)

    @property
    def p(self) -> float:
        """The two-sided p of no difference, corrected for three looks; 1 where the runs can decide nothing."""
        return 1.0 if self.obstacle else corrected_p(mean_p(self.differences))

    @property
    def seeds_needed(self) -> int | None:
        """The seeds that decide in 80 % of the cases with the means and spreads here; None for too many."""
        effect = self.expected_effect
        claim = seeds_to_decide(self.differences, effect.min_difference)
        kept = seeds_to_keep(self.kept_differences, effect.kept_margin) if self.kept_differences else LOOKS[0]
        return None if claim is None or kept is None else max(claim, kept)

    def as_json(self) -> dict[str, Any]:
        """The comparison in a certificate."""
        by_seed = {"own": self.method_values, "parent": self.parent_values}
        return {"difference": self.mean, "interval": self.interval, **by_seed, "result": self.verdict}

    def __str__(self) -> str:
        low, high = self.interval
        because = f" ({self.obstacle})" if self.obstacle else ""
        stale = "; stale: the code has changed since" if self.stale else ""
        seeds = f"{counted(len(self.differences), 'seed')}"
        interval = f"{100 * LOOK_LEVEL:.1f} % interval {low:+.3g} to {high:+.3g}"
        return f"{self.verdict}{because}: {self.mean:+.3g}, {interval} over {seeds}{stale}"


def compare(
    method: str, effect: ExpectedEffect, results: Results, first_seed: int | None = None
) -> EffectComparison | None:
    """Compare a method with its parent at the first look that decides or that none can, or at the last that has run.

    Fresh seeds begin where the effect says, or at `first_seed`. None before the first look. Runs between two looks do
    not count: a comparison that may end at any seed would err more often than stated.
    """
    found, at_edge = None, any(side.is_at_edge(results) for side in sides_of(method, effect))
    at_common = differences_at_common_rates(method, effect, results)
    first = effect.first_seed if first_seed is None else first_seed
    for look in plan_of(effect).looks:
        pairs = [pair_of(method, effect, seed, results) for seed in range(first, first + look)]
        if any(pair is None or not set(pair) <= results.keys() for pair in pairs):
            return found
        runs = [(results[pair[0]], results[pair[1]]) for pair in pairs if pair is not None]
        found = comparison_of(effect, runs, at_edge, at_common)
        if found is None or found.verdict != "undecided" or found.obstacle:
            return found
    return found


def differences_at_common_rates(method: str, effect: ExpectedEffect, results: Results) -> tuple[float, ...]:
    """The mean difference on the tuning seeds at each rate that is left to both sides; empty if they chose one rate."""
    own, parent = sides_of(method, effect)
    one, other = own.left(results), parent.left(results)
    found = []
    for rate in common(tuple(one), tuple(other)):
        pairs = [(own.run(seed, one[rate]), parent.run(seed, other[rate])) for seed in TUNING_SEEDS]
        values = [values_of(effect, effect.metric, results[a], results[b]) for a, b in pairs]
        found.append(fmean(a - b for a, b in values))
    return tuple(found)


def comparison_of(
    effect: ExpectedEffect,
    runs: list[tuple[StudyRunResult, StudyRunResult]],
    at_edge: bool = False,
    at_common: tuple[float, ...] = (),
) -> EffectComparison | None:
    """The comparison of pairs of runs, of the method and of its parent; None if one lacks the metric."""
    values = [values_of(effect, effect.metric, *pair) for pair in runs]
    kept = [values_of(effect, effect.kept, *pair) for pair in runs] if effect.kept else []
    other = OTHER_ACCURACY.get(effect.metric)
    if not all(math.isfinite(x) for pair in (*values, *kept) for x in pair):
        return None
    own, parent = zip(*values)
    return EffectComparison(
        effect,
        own,
        parent,
        kept_differences=tuple(a - b for a, b in kept),
        other_differences=tuple(a - b for a, b in (values_of(effect, other, *pair) for pair in runs)) if other else (),
        acted_values=tuple(acted_of(effect, pair[effect.acted_in == "parent"]) for pair in runs)
        if effect.acted
        else (),
        parent_gain=gain_of([run for _, run in runs], tuning_metric(effect)),
        bases=tuple(run.trial.base for run, _ in runs),
        cpu_ratio=cost_of(effect, [run for run, _ in runs]) / cost_of(effect, [run for _, run in runs]),
        at_edge=at_edge,
        at_common=at_common,
        stale=any(is_stale(run) for pair in runs for run in pair),
    )


def values_of(effect: ExpectedEffect, metric: str, own: StudyRunResult, parent: StudyRunResult) -> tuple[float, float]:
    """A metric of a method and of its parent with one seed, at equal tokens or after all iterations.

    A run that collapsed has the accuracy 0.
    """
    if not (own.tokens and parent.tokens):
        pair = (run.value(metric, len(run.tokens)) for run in (own, parent))
        a, b = (0.0 if math.isnan(x) and metric.startswith(ACCURACY) else x for x in pair)
        return a, b
    if effect.runs_matched_by == "iterations":
        return own.value(metric, len(own.tokens)), parent.value(metric, len(parent.tokens))
    budget = min(sum(own.tokens), sum(parent.tokens))
    return own.at_tokens(metric, budget), parent.at_tokens(metric, budget)


def is_loss(effect: ExpectedEffect) -> bool:
    """Whether the effect is about a harm that shows as a loss of held-out accuracy: there the parent must unlearn."""
    return effect.acted_in == "parent" and effect.acted in SKILLS


def acted_of(effect: ExpectedEffect, run: StudyRunResult) -> float:
    """The mean of the metric `acted` over all iterations: 0 without a value, NaN if the run did not store it.

    Of a harm that shows as a loss of held-out accuracy it is this loss.
    """
    if is_loss(effect):
        gain = gain_of([run], effect.acted)
        return math.nan if gain is None else -gain
    return fmean(run.metrics.get(effect.acted, {0: math.nan}).values() or [0.0])


def cost_of(effect: ExpectedEffect, runs: list[StudyRunResult]) -> float:
    """The CPU seconds of runs: per token where equal tokens match them, and else of a whole run. NaN without tokens."""
    seconds, tokens = (math.fsum(x) for x in ((run.cpu_seconds for run in runs), (sum(run.tokens) for run in runs)))
    if effect.runs_matched_by == "tokens":
        return seconds / tokens if tokens else math.nan
    return seconds / len(runs)


def gain_of(runs: list[StudyRunResult], metric: str) -> float | None:
    """The mean of a held-out metric at the end minus that at the start; None if a run lacks one of them."""
    gains = [run.value(metric, len(run.tokens)) - run.metrics.get(metric, {}).get(0, math.nan) for run in runs]
    return fmean(gains) if all(map(math.isfinite, gains)) else None


def measured_effect(method: str, reference: PaperReference, root: Path) -> EffectComparison | None:
    """The measurement of a method's stated effect, from stored results; None if there is none, or it is stale."""
    effect = reference.expected_effect
    comparison = compare(method, effect, read_results(root / RESULTS)) if effect else None
    return None if comparison is None or comparison.stale else comparison
