"""Rates that tuning seeds do not tell apart, in claims and in studies, and the bounds that GSPO takes."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from studies.claim import state
from studies.gspo_bounds import bounds_table, taken
from studies.gspo_regimes import BOUNDED, REGIMES, chosen, gain
from studies.pages import RESULTS, blocks_of
from studies.study import LEAST_ACCURACY, Estimate, Measured, judged_estimates
from studies.tuning import FRESH, at_best_rates, grid_table, stated

from groupwise.certificates.effect_plans import FIRST_SEED, TUNING_SEEDS
from groupwise.certificates.studies import StudyRun, StudyRunResult, read_results
from groupwise.evaluation.seed_verdicts import LOOK_LEVEL, LOOKS
from studies import claims, gspo_regimes, index, ladder
from tests.studies.test_claims import result_of
from tests.studies.test_studies import ended, with_runs

HOME = Path(__file__).parents[2]
CLAIM = claims.CLAIMS["noisy-best"]
LOW, HIGH = CLAIM.rates[1:3]


def measured_claim(gains: dict[tuple[float, float], float], near: float = 0.001) -> dict[StudyRun, StudyRunResult]:
    """Runs of a claim whose first side takes `LOW`, the second `HIGH`; `near` is how far `LOW` is below for the second.

    `gains` are the differences by the rates of both sides, of those with runs.
    """
    tuning = {(0, LOW): 0.5, (1, LOW): 0.6 - near, (1, HIGH): 0.6}
    sides = [(side, rate, seed) for side in (0, 1) for rate in CLAIM.rates for seed in TUNING_SEEDS]
    runs = {CLAIM.trial(side, rate, seed): tuning.get((side, rate), 0.1) for side, rate, seed in sides}
    for seed in range(FIRST_SEED, FIRST_SEED + LOOKS[0]):
        for (one, other), difference in gains.items():
            runs[CLAIM.trial(0, one, seed)] = 0.5 + difference + 0.001 * (seed % 3)
            runs[CLAIM.trial(1, other, seed)] = 0.5
    return {trial: result_of(trial, x) for trial, x in runs.items()}


def learned(found: dict[StudyRun, StudyRunResult]) -> dict[StudyRun, StudyRunResult]:
    """The same runs, whose metric begins below its mean: the second side does not unlearn."""
    return {
        run: replace(x, metrics={**x.metrics, CLAIM.metric: {0: 0.0, **x.metrics[CLAIM.metric]}})
        for run, x in found.items()
    }


def test_a_claim_waits_for_the_rate_that_is_left_to_both_sides() -> None:
    found = learned(measured_claim({(LOW, HIGH): 0.2}))
    assert CLAIM.left(1, found) == (HIGH, LOW) and CLAIM.left(0, found) == (LOW,)
    assert str(CLAIM.judgement(found)) == "*undecided*: rates not separated" and CLAIM.judgement(found).is_final
    assert state(CLAIM, found).startswith("*undecided*: rates not separated: 0.201 (")
    assert claims.taken(CLAIM, found) == f"{LOW:.3g}, {HIGH:.3g} (or {LOW:.3g})"
    waits = CLAIM.next_runs(found)
    assert waits == [CLAIM.trial(1, LOW, seed) for seed in range(FIRST_SEED, FIRST_SEED + LOOKS[0])]
    assert CLAIM.judgement(learned(measured_claim({(LOW, HIGH): 0.2}, near=0.031))).word == "shown"


@pytest.mark.parametrize(("level", "word"), [(0.5, "shown"), (0.9, "undecided")])
def test_a_claim_is_decided_where_the_verdicts_at_all_rates_agree(level: float, word: str) -> None:
    found = learned(measured_claim({(LOW, HIGH): 0.2}))
    further = {run: result_of(run, level) for run in CLAIM.next_runs(found)}
    assert CLAIM.judgement(found | further).word == word and CLAIM.next_runs(found | further) == []


def accuracy_of(at_other: float, tuned: float) -> Callable[[StudyRun], float]:
    """Accuracies of the ladder: naive GRPO is best at 1e-4, the others at 3e-4, and `tuned` less at the other rate.

    With fresh seeds the last rung ends at 0.7, or `at_other` at the rate of naive GRPO, and all others at 0.5.
    """
    naive = set(ladder.STUDY.parts["rungs"]["naive GRPO"].settings) - {"optimizer.lr = 3e-4"}

    def accuracy(run: StudyRun) -> float:
        rates = ["optimizer.lr = 0.0001", "optimizer.lr = 0.0003"]
        (rate,) = (line for line in run.settings if line.startswith("optimizer.lr ="))
        if rate not in rates:
            return 0.1
        is_best = rate == rates[not naive <= set(run.settings)]
        if run.seed in TUNING_SEEDS:
            return 0.5 - tuned * (not is_best)
        is_whole = "method.filter = mixed_outcomes" in run.settings
        return 0.5 if not is_whole else (0.7 if is_best else at_other) + run.seed / 1e4

    return accuracy


def ladder_results(tuned: float) -> dict[StudyRun, StudyRunResult]:
    """The runs of the ladder up to its first look."""
    results: dict[StudyRun, StudyRunResult] = {}
    while not at_best_rates(ladder.STUDY, results):
        assert with_runs(ladder.STUDY, results, accuracy_of(0.7, tuned))
    return results


def test_a_stated_comparison_waits_for_the_rates_that_are_left_to_both_sides() -> None:
    """Naive GRPO and the last rung run at each other's rate, too; other rungs do not."""
    first = ladder_results(tuned=0.01)
    (claimed,) = stated(ladder.STUDY, at_best_rates(ladder.STUDY, first))
    assert (claimed.word, claimed.because) == ("undecided", "rates not separated")
    for at_other, word in ((0.7, "shown"), (0.3, "undecided"), (math.nan, "undecided")):
        results = dict(first)
        waits = with_runs(ladder.STUDY, results, accuracy_of(at_other, 0.01))
        assert {run.seed for run in waits} == set(FRESH[: LOOKS[0]]) and len(waits) == 2 * LOOKS[0]
        assert claimed.unmade == set(waits) and with_runs(ladder.STUDY, results, accuracy_of(at_other, 0.01)) == []
        (met,) = stated(ladder.STUDY, at_best_rates(ladder.STUDY, results))
        assert met.word == word and not met.unmade
        assert met.claimed(-1).word == {"shown": "opposite"}.get(word, word), "the sign of a claim changes no reason"
    choice = ladder.STUDY.tuned["rungs"]
    assert "| naive GRPO | 0.0001 (or 0.0003) | " in grid_table(ladder.STUDY, "rungs", choice, first)


def test_rates_that_the_tuning_tells_apart_decide() -> None:
    results = ladder_results(tuned=0.021)
    (claimed,) = stated(ladder.STUDY, at_best_rates(ladder.STUDY, results))
    assert claimed.word == "shown" and with_runs(ladder.STUDY, results, accuracy_of(0.3, 0.021)) == []


def test_a_difference_of_differences_keeps_the_rates_that_separate_its_sides() -> None:
    runs = [StudyRun("grpo", "coin", seed) for seed in (0, 1)]
    ends = {"0.0001": dict.fromkeys(runs, 0.5), "0.0003": dict.fromkeys(runs, 0.1)}
    one = Estimate((0.5, 0.5001), 0.02, at_rates=ends)
    other = Estimate((0.2, 0.2), at_rates={"0.0003": dict.fromkeys(runs, 0.2)})
    assert not one.minus(replace(other, at_rates={"0.0001": ends["0.0001"]})).at_common, "both have the same rate"
    met = one.minus(other, 0.02)
    assert met.at_common == ((0.1 - 0.2,) * 2,) and met.because == "rates not separated"
    assert met.minus(Estimate((0.0, 0.0))).at_common == met.at_common and not met.at_rates
    assert Estimate((0.0, 0.0)).minus(met).at_common == ((0.2 - 0.1,) * 2,)


def test_a_number_of_all_arms_is_open_where_any_two_have_rates_that_are_not_separated() -> None:
    arms = ladder.STUDY.parts["rungs"]
    names = list(arms)[:2]
    left = {names[0]: {"1": arms[names[0]], "3": arms[names[0]]}, names[1]: {"3": arms[names[1]]}}
    m = Measured({name: arms[name] for name in names}, {}, (), left=left)
    both = m.estimate((1.0, 1.1, 0.9))
    assert both.minus(Estimate((0.0, 0.0, 0.0)), 0.02).because == "rates not separated"
    assert not Measured(m.arms, {}, (), left={names[0]: left[names[0]]}).estimate((1.0, 1.1)).at_common


def test_an_undecided_verdict_before_the_last_look_has_not_enough_runs() -> None:
    open_, shown = (0.1, -0.1) * 5, (0.1, 0.11, 0.09) * 3
    early = Estimate(open_, 0.02, LOOK_LEVEL)
    assert early.verdict == "*undecided*: not enough runs" and not early.obstacle
    assert Estimate(open_ * 2, 0.02, LOOK_LEVEL).verdict == "*undecided*" == Estimate(open_, 0.02).verdict
    assert Estimate(shown, 0.02, LOOK_LEVEL).because == ""
    assert Estimate(open_, 0.02, LOOK_LEVEL, at_edge=True).because == "a best rate at an edge"
    results = read_results(HOME / RESULTS)
    for effect in index.EFFECTS:
        found = index.effect_result(effect, results, {}) if effect.study.tuned else None
        for x in found.claimed if found and not found.is_open else ():
            is_early = len(x.values) < LOOKS[-1] and x.word == "undecided" and not x.obstacle
            assert (x.because == "not enough runs") is is_early and ("not enough runs" in found.text) >= is_early


def test_gspo_takes_the_bounds_of_the_best_tuning_mean_and_the_papers_in_a_tie() -> None:
    (m,) = at_best_rates(gspo_regimes.STUDY, read_results(HOME / RESULTS)).values()
    names = BOUNDED["longer"]
    runs = {name: [m.arms[f"gspo {name}"].trial(seed) for seed in TUNING_SEEDS] for name in names}

    def tuned(**means: float) -> Measured:
        own = {run: ended_right(run, means[name.split()[0]]) for name in names for run in runs[name]}
        return replace(m, results=dict(m.results) | own)

    def ended_right(run: StudyRun, right: float) -> StudyRunResult:
        return replace(ended(run, 0.0), metrics={gspo_regimes.REWARD: dict.fromkeys(range(1, 31), right)})

    assert taken(tuned(longer=0.3, wider=0.35, widest=0.345), names) == ("wider longer", "widest longer")
    assert taken(tuned(longer=0.3, wider=0.3, widest=0.2), names) == ("longer", "wider longer"), "a tie"
    widest = tuned(longer=0.3, wider=0.3, widest=0.9)
    assert chosen(widest, "longer").values == gain(widest, "widest longer").values
    assert "| longer | 100 | 1: 0.300; 10: 0.300; 100: 0.900 |" in bounds_table(widest, BOUNDED)
    untuned = replace(m, results={run: x for run, x in m.results.items() if run.seed not in TUNING_SEEDS})
    assert taken(untuned, names) == ("longer",) and bounds_table(untuned, BOUNDED) == ""


def test_each_regime_of_gspo_counts_once_with_the_bounds_that_it_takes() -> None:
    results = read_results(HOME / RESULTS)
    (m,) = at_best_rates(gspo_regimes.STUDY, results).values()
    found = stated(gspo_regimes.STUDY, {"regimes": m})
    assert [x.values for x in found] == [chosen(m, regime).values for regime in REGIMES]
    assert all(x.least == LEAST_ACCURACY for x in found)
    sentence = blocks_of(gspo_regimes.STUDY, HOME)["gspo_regimes"]
    assert len([line for line in sentence.splitlines() if line.startswith("- ")]) == len(REGIMES)
    with judged_estimates() as judged:
        gspo_regimes.blocks({"regimes": m}, {})
    assert len({x.values for x in judged}) == sum(map(len, BOUNDED.values())), "the page keeps those with other bounds"
