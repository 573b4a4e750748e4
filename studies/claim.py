"""A claim that is written down before its runs: two sides at their best learning rates, on fresh seeds.

*Rates.* Each side runs at each rate with the seeds of `TUNING_SEEDS`, which no study uses. The rate with the largest
mean is its rate, in a tie the smaller one; a collapsed run counts as it is, and a grid whose best is at an edge grows.
*Looks.* Both sides then run with the seeds from `FIRST_SEED` on, and the differences within a seed are tested after
each number of seeds in `LOOKS`, each at Pocock's bound. The first look that decides ends the runs. These seeds start
from three first models in turn; a claim that makes its models makes one for each seed.
*Undecided* without regard to the differences: the mechanism had nothing to do, a best rate lies at an edge of the
largest grid, the second side unlearns, or it leaves too little room for *absent*. More seeds would not decide these.
*Rates not separated.* A verdict between sides with different rates, of which one is left to both (studies/rates.py),
waits for the runs of both sides there.
*Admitted.* A claim about a model that another claim admits has no run before that one is shown.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from groupwise.certificates.effect_comparisons import is_share
from groupwise.certificates.effect_plans import (
    AT_EDGE,
    FIRST_SEED,
    TUNING_SEEDS,
    WHOLE,
    best,
    common,
    extended,
    is_at_edge,
    left,
)
from groupwise.certificates.studies import StudyRun, StudyRunResult
from groupwise.config.recipe import Recipe
from groupwise.core import counted
from groupwise.evaluation.interval import mean_interval
from groupwise.evaluation.seed_verdicts import (
    FIRST_MODELS_DIFFER,
    LITTLE_ROOM,
    LOOK_LEVEL,
    LOOKS,
    NOT_ENOUGH_RUNS,
    NOT_SEPARATED,
    Verdict,
    has_little_room,
    verdict,
)
from groupwise.evaluation.seeds_to_decide import seeds_in_words, seeds_to_decide
from studies.judgement import Judgement, judged
from studies.rates import not_separated
from studies.study import Arm, Estimate, Results, average, points

EARLY = 5
"""The first iterations, in which a mechanism has to act. Later ones may lack what it repairs, since it was repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The metric of the first side is larger than that of the second, as a mean over iterations `first` to `last`.

    `sides` have no learning rate; `rates` are in rising order, and a single one is not tuned. Others grow where the
    best is at an edge. `bounds` are settings of the first side, tuned with its rate, for a method whose paper tunes its
    own bounds too. A difference below `least` does not count. `beside` are metrics that the page shows, of both
    sides. `bases` and `use` are those of a study.

    `acted` is a metric, and its least mean over the first iterations of the second side, which lacks the mechanism:
    below it the mechanism had nothing to do. `admitted_by` is the claim that has to be shown before this one runs.
    """

    name: str
    text: str
    sides: tuple[Arm, Arm]
    bounds: tuple[tuple[str, ...], ...] = ((),)
    rates: tuple[float, ...]
    metric: str
    first: int
    last: int
    least: float
    beside: tuple[str, ...] = ()
    bases: Mapping[str, Callable[[int, Path], Recipe]] = field(default_factory=dict)
    use: tuple[str, ...] = ()
    acted: tuple[str, float] | None = None
    admitted_by: "Claim | None" = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """What its runs store."""
        return (self.metric, *self.beside, *(self.acted or ())[:1])

    @property
    def has_one_rate(self) -> bool:
        """Whether it compares methods at a rate that neither has chosen: it says whom that rate suits."""
        return len(self.rates) == 1 and self.sides[0].method != self.sides[1].method

    def trial(self, side: int, rate: float, seed: int, bounds: tuple[str, ...] = ()) -> StudyRun:
        """A side's run at a rate, with bounds that are tuned; a fresh seed's from its first model."""
        arm = self.sides[side]
        run = replace(arm, settings=(*arm.settings, *bounds, f"optimizer.lr = {rate:.3g}")).trial(seed)
        return run if seed in TUNING_SEEDS else replace(run, base=seed % self.first_models)

    @property
    def first_models(self) -> int:
        """How many models the fresh seeds start from; 1 for a claim that makes its own, one for each seed."""
        return 1 if self.bases else WHOLE.bases

    def mean(self, result: StudyRunResult, metric: str) -> float:
        """The mean of a metric over the iterations of the claim; 0 for a run that collapsed before them."""
        values = points(result, metric, self.first, self.last).values()
        return average(values) if values else 0.0

    def grid(self, side: int, results: Results, bounds: tuple[str, ...] = ()) -> tuple[float, ...]:
        """The rates that a side tries with some bounds; none if there is one rate only."""
        if len(self.rates) == 1:
            return ()
        return extended(
            self.rates, lambda rates: best(rates, [self._score(side, rate, results, bounds) for rate in rates])
        )

    def best_rate(self, side: int, results: Results, bounds: tuple[str, ...] = ()) -> float | None:
        """The rate at which a side runs with the fresh seeds; None before its tuning runs are there."""
        if rates := self.grid(side, results, bounds):
            return best(rates, [self._score(side, rate, results, bounds) for rate in rates])
        return self.rates[0]

    def choices(self, side: int) -> tuple[tuple[str, ...], ...]:
        """The bounds that a side tries, each with its grid of rates."""
        return self.bounds if side == 0 else ((),)

    def choice(self, side: int, results: Results) -> tuple[tuple[str, ...], float] | None:
        """The bounds and the rate at which a side runs with the fresh seeds; None before its tuning runs are there."""
        choices = self.choices(side)
        rates = [self.best_rate(side, results, bounds) for bounds in choices]
        known = [(bounds, rate) for bounds, rate in zip(choices, rates, strict=True) if rate is not None]
        if len(known) < len(choices):
            return None
        if len(known) == 1:
            return known[0]
        return best(known, [self._score(side, rate, results, bounds) for bounds, rate in known])

    def left(self, side: int, results: Results) -> tuple[float, ...]:
        """The best rate of a side, and those that its tuning seeds do not separate from it; none before them."""
        choice = self.choice(side, results)
        bounds = choice[0] if choice else self.choices(side)[0]
        rates = self.grid(side, results, bounds)
        scores = [self._score(side, rate, results, bounds) for rate in rates]
        return left(rates, scores, self.least) if rates else self.rates

    def _score(self, side: int, rate: float, results: Results, bounds: tuple[str, ...]) -> float:
        """The mean of the metric over the tuning runs of a side at a rate; NaN while one is missing."""
        runs = [results.get(self.trial(side, rate, seed, bounds)) for seed in TUNING_SEEDS]
        values = [math.nan if run is None else self.mean(run, self.metric) for run in runs]
        return average(values)

    def is_at_edge(self, results: Results) -> bool:
        """Whether the best rate of a side lies at an edge of its grid, as far as that may grow."""
        found = [(side, self.choice(side, results)) for side in (0, 1)]
        return any(choice and is_at_edge(self.grid(side, results, choice[0]), choice[1]) for side, choice in found)

    def pairs(self, results: Results, at: float | None = None) -> Iterator[tuple[StudyRun, StudyRun]]:
        """The runs of both sides with each fresh seed, once rates and bounds are known; with `at` at that rate."""
        one, other = (self.choice(side, results) for side in (0, 1))
        for seed in range(FIRST_SEED, FIRST_SEED + LOOKS[-1]):
            if one is not None and other is not None:
                rates = (one[1], other[1]) if at is None else (at, at)
                yield self.trial(0, rates[0], seed, one[0]), self.trial(1, rates[1], seed, other[0])

    def differences(self, results: Results, at: float | None = None) -> list[float]:
        """The first side minus the second, for each seed up to the first that lacks a result."""
        found = []
        for one, other in self.pairs(results, at):
            if one not in results or other not in results:
                break
            found.append(self.mean(results[one], self.metric) - self.mean(results[other], self.metric))
        return found

    def is_admitted(self, results: Results) -> bool:
        """Whether the claim that admits this one is shown, if there is one."""
        return self.admitted_by is None or self.admitted_by.judgement(results).word == "shown"

    def next_runs(self, results: Results) -> list[StudyRun]:
        """The runs without a result until the next look: the tuning runs first, and none after a verdict."""
        if not self.is_admitted(results):
            return []
        grids = [self.trial(side, rate, seed, bounds) for side in (0, 1) for bounds in self.choices(side)
                 for rate in self.grid(side, results, bounds) for seed in TUNING_SEEDS]  # fmt: skip
        tuning = [run for run in grids if run not in results]
        if tuning or self.judgement(results).is_final:
            return tuning or self._unmade(results)
        pairs = list(self.pairs(results))
        for look in LOOKS:
            if runs := [run for pair in pairs[:look] for run in pair if run not in results]:
                return runs
        return []

    def had_to_act(self, results: Results) -> float:
        """The metric of `acted`, a mean over the second side's first iterations and the seeds of the first look."""
        assert self.acted
        runs = [results[other] for _, other in islice(self.pairs(results), LOOKS[0]) if other in results]
        values = [points(run, self.acted[0], 1, EARLY).values() for run in runs]
        return average(x for early in values for x in early)

    def room(self, results: Results, look: int) -> float:
        """How far the first side's metric can lie above that of the second, over the seeds of a look."""
        others = (results[other] for _, other in islice(self.pairs(results), look))
        return 1 - average(self.mean(run, self.metric) for run in others) if is_share(self.metric) else math.inf

    def gain(self, results: Results, look: int) -> float:
        """How far the second side's metric rises from its first value, over the seeds of a look."""
        others = [results[other] for _, other in islice(self.pairs(results), look)]
        firsts = (values[min(values)] for run in others if (values := run.metrics.get(self.metric)))
        return average(self.mean(run, self.metric) for run in others) - average(firsts)

    def obstacle(self, results: Results, look: int) -> str:
        """Why the seeds of a look decide nothing, and further ones would not; empty where they can."""
        if self.acted and not self.had_to_act(results) >= self.acted[1]:
            return "it did not act"
        if is_share(self.metric) and self.gain(results, look) < 0:
            return f"{self.sides[1].label} unlearns"
        if self.is_at_edge(results):
            return AT_EDGE
        seen, room = self.differences(results)[:look], self.room(results, look)
        return LITTLE_ROOM if has_little_room(seen, self.least, room, LOOK_LEVEL) else ""

    def judgement(self, results: Results) -> Judgement:
        """The verdict of the first look that decides, or that has an obstacle; not final while one is to come."""
        found = self._at_own_rates(results)
        words: list[Verdict | None] = [self._word_at(rate, found.seeds, results) for rate in self._common(results)]
        because = not_separated(found.word, words)
        return Judgement("undecided", because, found.seeds) if because else found

    def _at_own_rates(self, results: Results) -> Judgement:
        return judged(
            self.differences(results), self.least, self.first_models, lambda look: self.obstacle(results, look)
        )

    def _common(self, results: Results) -> list[float]:
        """The rates that are left to both sides, if these take different ones."""
        return common(self.left(0, results), self.left(1, results))

    def _word_at(self, rate: float, seeds: int, results: Results) -> Verdict | None:
        """The verdict by the same seeds with both sides at one rate; None without their runs."""
        differences = self.differences(results, rate)[:seeds]
        bases = [run.base for run, _ in islice(self.pairs(results, rate), seeds)]
        return verdict(differences, self.least, LOOK_LEVEL, bases) if len(differences) == seeds else None

    def _unmade(self, results: Results) -> list[StudyRun]:
        """The runs without a result for which a verdict waits, whose sides have rates that are not separated."""
        found = self.judgement(results)
        if found.because != NOT_SEPARATED:
            return []
        pairs = (pair for rate in self._common(results) for pair in islice(self.pairs(results, rate), found.seeds))
        return [run for pair in pairs for run in pair if run not in results]


def state(claim: Claim, results: Results) -> str:
    """What is known of a claim, for the page. With one rate it is a claim about that rate alone."""
    if claim.admitted_by and not claim.is_admitted(results):
        admission = claim.admitted_by.judgement(results)
        if admission.is_final:
            return f"*not admitted*: `{claim.admitted_by.name}` is {admission.word}"
        return f"*undecided*: {NOT_ENOUGH_RUNS}, waits for `{claim.admitted_by.name}`"
    found = claim.judgement(results)
    differences = claim.differences(results)[: found.seeds]
    seeds = [counted(found.seeds, "seed")] * bool(found.seeds)
    if found.word == "undecided" and (not found.is_final or not found.because) and len(differences) > 1:
        seeds.append(f"{seeds_in_words(seeds_to_decide(differences, claim.least), found.seeds)} to decide")
    if found.because not in ("", FIRST_MODELS_DIFFER, NOT_SEPARATED):
        return ", ".join([str(found), *seeds])
    low, high = mean_interval(differences, LOOK_LEVEL)
    at = " at one rate" * claim.has_one_rate
    return f"{found}{at}: {Estimate(tuple(differences)).mean:.3f} ({low:.3f} to {high:.3f}), {', '.join(seeds)}"
