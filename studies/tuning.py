"""Arms at their best learning rates: each chooses on tuning seeds, and they are compared again on fresh ones.

A comparison of methods at one shared rate says which method that rate suits. So each arm has a grid of 1/3, 1, 3 and 10
times its rate on two tuning seeds, with further rates where the best is at an edge, and the best of each is compared on
fresh seeds. Ties go to the smaller rate, and a collapse counts. A study states the parts that compare methods, with
the metric that chooses. Rates that the tuning seeds do not tell apart: studies/rates.py.

Fresh seeds start from three first models in turn: the packaged one, and two that are trained as it with other seeds.
They run in looks of 5, 10 and 20 seeds, until a look decides each stated comparison of the study (studies/effects.py);
what is open after the last one is *undecided*. Intervals have Pocock's level for three looks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from groupwise.certificates.effect_plans import (
    FIRST_SEED,
    TUNING_SEEDS,
    WHOLE,
    best,
    extended,
    is_at_edge,
    left,
    merged,
    path_of,
)
from groupwise.certificates.studies import StudyRun
from groupwise.evaluation.seed_verdicts import LOOK_LEVEL, NOT_SEPARATED
from studies.effects import EFFECTS
from studies.rates import in_words
from studies.study import LEAST_ACCURACY, Arm, Choice, Estimate, Measured, Results, Study, table

FRESH = range(FIRST_SEED, FIRST_SEED + WHOLE.looks[-1])
"""The seeds on which arms are compared that chose their learning rates on others."""


def at_rate(arm: Arm, rate: float, choice: Choice) -> Arm:
    """The arm with another learning rate, and with the settings of all runs that choose or compare rates."""
    return replace(arm, settings=merged(arm.settings, choice.settings, (f"optimizer.lr = {rate:.3g}",)))


def grid_of(arm: Arm, choice: Choice, results: Results) -> list[Arm]:
    """The arm at each rate of the grid from the smallest, and at those beyond an edge that is the best."""
    rate = arm.trial(0).recipe().optimizer.lr

    def best_of(factors: tuple[float, ...]) -> float | None:
        return best(factors, scores_of([at_rate(arm, rate * factor, choice) for factor in factors], choice, results))

    return [at_rate(arm, rate * factor, choice) for factor in extended(WHOLE.factors, best_of)]


def scores_of(arms: list[Arm], choice: Choice, results: Results) -> list[float]:
    """The score of an arm at each rate."""
    return [choice.score(arm, results) for arm in arms]


def chosen(arm: Arm, choice: Choice, results: Results) -> Arm | None:
    """The arm at its best rate; None before its grid has run."""
    return next(iter(left_of(arm, choice, results).values()), None)


def left_of(arm: Arm, choice: Choice, results: Results) -> dict[str, Arm]:
    """The arm at its best rate, and at those that its tuning seeds do not tell apart from it; empty before its grid."""
    arms = grid_of(arm, choice, results)
    return {rate_of(one): one for one in left(arms, scores_of(arms, choice, results), LEAST_ACCURACY)}


def rate_of(arm: Arm) -> str:
    """The learning rate of an arm that has one in its settings."""
    return next(line.partition(" = ")[2] for line in arm.settings if path_of(line) == "optimizer.lr")


def tuned_runs(study: Study, results: Results) -> dict[StudyRun, set[str]]:
    """The runs of a study's tuned parts, with their metrics: grids, then fresh seeds at the best rates until a look.

    Then those at rates that are left to both sides of a stated comparison, if its verdict waits for them.
    """
    runs: dict[StudyRun, set[str]] = {}
    seeds = seeds_of(study, results)
    for part, choice in study.tuned.items():
        grid = [tried for arm in study.parts[part].values() for tried in grid_of(arm, choice, results)]
        metrics = {*study.metrics, choice.metric}
        runs |= {tried.trial(seed): metrics for tried in grid for seed in TUNING_SEEDS}
        compared = fresh(study, part, results, seeds)
        if compared is not None:
            runs |= {compared.trial(arm, seed): metrics for seed in seeds for arm in compared.arms.values()}
    found = at_best_rates(study, results)
    compared = stated(study, study.measured(results) | found) if found else []
    waited = [x.unmade for x in compared if x.obstacle == NOT_SEPARATED]
    metrics = {*study.metrics, *(choice.metric for choice in study.tuned.values())}
    return runs | {run: metrics for unmade in waited for run in unmade}


def possible_runs(study: Study, results: Results) -> Iterator[StudyRun]:
    """The fresh runs of a study's tuned parts at every rate of the grids, also at those that are not the best now."""
    for part, choice in study.tuned.items():
        every = Measured({}, results, FRESH, LOOK_LEVEL, first_models(study))
        grid = [tried for arm in study.parts[part].values() for tried in grid_of(arm, choice, results)]
        yield from (every.trial(arm, seed) for arm in grid for seed in FRESH)


def first_models(study: Study) -> int:
    """How many models the fresh seeds of a study start from. One that makes a model for each seed has it for all."""
    return 1 if study.bases else WHOLE.bases


def fresh(study: Study, part: str, results: Results, seeds: Sequence[int]) -> Measured | None:
    """The arms of a tuned part at their best rates, on fresh seeds; None before each has chosen."""
    choice = study.tuned[part]
    rates = {key: left_of(arm, choice, results) for key, arm in study.parts[part].items()}
    if not all(rates.values()):
        return None
    taken = {key: next(iter(own.values())) for key, own in rates.items()}
    grids = {key: grid_of(arm, choice, results) for key, arm in study.parts[part].items()}
    edges = frozenset(key for key, grid in grids.items() if is_at_edge(grid, taken[key]))
    return Measured(taken, results, seeds, LOOK_LEVEL, first_models(study), at_edge=edges, left=rates)


def at_best_rates(study: Study, results: Results) -> dict[str, Measured]:
    """The results of the tuned parts at the best rates, at the first look that decides or the last complete one."""
    found: dict[str, Measured] = {}
    for look in WHOLE.looks if study.tuned else ():
        parts = {part: fresh(study, part, results, FRESH[:look]) for part in study.tuned}
        complete = {key: part for key, part in parts.items() if part is not None and len(part.seeds) == look}
        if len(complete) < len(parts):
            break
        found = complete
        if is_decided(study, results, found):
            break
    return found


def best_measured(study: Study, results: Results) -> dict[str, Measured]:
    """The results of all parts: at the best rates where those runs are there, at the shared rates elsewhere."""
    return study.measured(results) | at_best_rates(study, results)


def is_decided(study: Study, results: Results, tuned: Mapping[str, Measured]) -> bool:
    """Whether each stated comparison of a study has a verdict, with the tuned parts in place of the shared rates.

    One with an obstacle is decided, too: further seeds leave it *undecided*.
    """
    measured = {**study.measured(results), **tuned}
    return all(x.word != "undecided" or x.obstacle for x in stated(study, measured))


def stated(study: Study, measured: Mapping[str, Measured]) -> list[Estimate]:
    """The stated comparisons of a study."""
    return [x for effect in EFFECTS if effect.study.name == study.name for x in effect.claimed(measured, {})]


def seeds_of(study: Study, results: Results) -> Sequence[int]:
    """The fresh seeds of a study until its next look, or until that which decided."""
    found = at_best_rates(study, results)
    run = max((len(part.seeds) for part in found.values()), default=0)
    if run and (run == len(FRESH) or is_decided(study, results, found)):
        return FRESH[:run]
    return FRESH[: next(look for look in WHOLE.looks if look > run)]


def tuned_blocks(study: Study, results: Results, exact: dict) -> dict[str, str]:
    """The generated texts of the tuned parts: the grid, and the part's text at the best rates."""
    measured, found = study.measured(results), at_best_rates(study, results)
    texts = {}
    for part, choice in study.tuned.items():
        whole = dict(measured) | {part: found[part]} if part in found else {}
        text = study.blocks(whole, exact)[part] if whole else _not_run(study, part)
        texts[f"{part}_tuned"] = "\n\n".join(filter(None, (grid_table(study, part, choice, results), text)))
    return texts


def grid_table(study: Study, part: str, choice: Choice, results: Results) -> str:
    """The rate that each arm takes, with others that are left to it, and all scores; empty before any has run."""
    rows = list[tuple[str, str, str]]()
    for key, arm in study.parts[part].items():
        arms = grid_of(arm, choice, results)
        scores = scores_of(arms, choice, results)
        cells = [_cell(tried, x) for tried, x in zip(arms, scores, strict=True)]
        taken = in_words([float(rate) for rate in left_of(arm, choice, results)])
        rows.append((key, taken, "; ".join(filter(None, cells))))
    if not any(cells for *_, cells in rows):
        return ""
    return table(("arm", "its learning rate", "mean over the tuning seeds by learning rate"), rows)


def _cell(arm: Arm, score: float) -> str:
    if math.isnan(score):
        return ""
    return f"{rate_of(arm)}: {'collapsed' if score == -math.inf else f'{score:.3f}'}"


def _not_run(study: Study, part: str) -> str:
    """The text of a tuned part whose fresh seeds have not run."""
    arms = len(study.parts[part])
    grid, first, last = (arms * n for n in (len(WHOLE.factors) * len(TUNING_SEEDS), WHOLE.looks[0], WHOLE.looks[-1]))
    runs = f"{grid} runs of grids and {first} to {last} at the best rates"
    return f"*Not compared yet.* `python -m studies {study.name}` makes {runs}."
