"""The atlas: both sides choose their rates, looks decide, the page equals the results, finished runs are skipped."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.atlas import __main__ as command
from benchmarks.atlas import first_models, problems, running
from benchmarks.atlas.earlier import pilot_of, read_earlier, steps_changed
from benchmarks.atlas.page import against, claim, corrected, cost, decided, differences, page, summary, to_decide
from benchmarks.atlas.repeated import differences as repeated_differences
from benchmarks.atlas.studies import (
    FIRST_METHODS,
    RESTATED,
    Study,
    grid_of,
    needed_trials,
    seeds_due,
    studies,
    unread_trials,
)
from tools import flow_models

from groupwise import methods
from groupwise.certificates import code_hash as hashing
from groupwise.certificates import effect_plans as plans
from groupwise.certificates import studies as stored
from groupwise.certificates.code_hash import code_hash
from groupwise.certificates.effect_comparisons import (
    EffectComparison,
    compare,
    comparison_of,
    cost_of,
    differences_at_common_rates,
    gain_of,
    measured_effect,
    values_of,
)
from groupwise.certificates.effect_plans import FIRST_SEED, WHOLE, merged, pair_of, sides_of
from groupwise.certificates.studies import RESULTS, StudyRun, StudyRunResult
from groupwise.checks.check_method import dry_run
from groupwise.config.recipe import Recipe
from groupwise.core import Diverged
from groupwise.evaluation.seed_verdicts import LOOKS, NOT_SEPARATED
from groupwise.methods import ExpectedEffect, grpo, gspo, murphy, published, reference_of

HOME = Path(__file__).parents[2]
EFFECT = ExpectedEffect(
    metric="entropy", direction="up", task="calculator", parent="grpo", min_difference=0.1,
    runs_matched_by="iterations", plan="whole",
)  # fmt: skip
STUDY = Study("gspo", EFFECT)
ONE = ("prompts = 1", "iterations = 1", "method.group_size = 2", "method.minibatches = 1", "evaluate.problems = 1",
       "sampling.max_tokens = 4")  # fmt: skip
SKILL = "eval/accuracy_greedy"


def result(
    trial: StudyRun, metrics: dict[str, dict[int, float]], tokens: tuple[int, ...] = (10,) * 4
) -> StudyRunResult:
    code, model = stored.present_hashes(trial)
    return StudyRunResult(
        trial=trial,
        metrics=metrics,
        tokens=tokens,
        cpu_seconds=9.0,
        commit="c",
        recipe_hash="r",
        code_hash=code,
        model_hash=model,
    )


def ended(trial: StudyRun, **values: float) -> StudyRunResult:
    """A run whose metrics are constant: an entropy, and a skill that chooses between rates."""
    named = {"entropy": values.get("entropy", 1.0), SKILL: values.get("skill", 0.5)}
    return result(trial, {name: dict.fromkeys((1, 2, 3, 4), x) for name, x in named.items()})


def near(rate: float) -> Callable[[StudyRun], float]:
    """A skill that is largest at a rate."""
    return lambda run: 0.5 - 0.01 * abs(math.log(rate_of(run.settings) / rate))


def tuned(study: Study = STUDY, skill: Callable[[StudyRun], float] | None = None) -> dict[StudyRun, StudyRunResult]:
    """The results of both grids, also beyond their edges. Without a skill the parent's rate is the best."""
    found: dict[StudyRun, StudyRunResult] = {}
    skill = skill or near(sides_of(study.method, study.effect)[1].rate)
    while missing := [run for run in grid_of(study, found) if run not in found]:
        found |= {run: ended(run, skill=skill(run)) for run in missing}
    return found


def results_of(differences: list[float], study: Study = STUDY) -> dict[StudyRun, StudyRunResult]:
    """Results of gspo, tuned, that differ from its parent's by the given numbers, seed by seed."""
    found = tuned(study)
    for seed, difference in enumerate(differences, FIRST_SEED):
        own, parent = pair_of(study.method, study.effect, seed, found) or ()
        found[own] = ended(own, entropy=1.0 + difference)
        found[parent] = ended(parent)
    return found


def rate_of(settings: tuple[str, ...]) -> float:
    return next(float(line.partition(" = ")[2]) for line in settings if line.startswith("optimizer.lr = "))


# Stored runs


def test_every_stored_run_belongs_to_a_study() -> None:
    """A run that no study reads is counted in the costs and shown nowhere. `make atlas` names it."""
    assert unread_trials(stored.read_results(HOME / RESULTS)) == []
    own = StudyRun("gspo", "calculator", 1, ("prompts = 4",))
    assert unread_trials({own: result(own, {})}) == [own]


# Tuning


def test_each_side_has_a_grid_around_its_parents_rate_and_its_own_bounds() -> None:
    own, parent = sides_of("gspo", EFFECT)
    rate = StudyRun("grpo", "calculator", 0).recipe().optimizer.lr
    assert sorted({rate_of(x) for x in parent.choices({})}) == pytest.approx(
        [rate / 3, rate, 3 * rate, 10 * rate], rel=1e-2
    )
    assert len(parent.choices({})) == 4 and len(own.choices({})) == 4 * len(reference_of(gspo).tuned_settings) == 12
    assert [rate_of(x) for x in own.choices({})] == sorted(rate_of(x) for x in own.choices({}))
    assert {run.base for run in grid_of(STUDY, {})} == {0}, "the packaged model, as the page says"
    assert {run.seed for run in grid_of(STUDY, {})} == {90, 91} and not {90, 91} & set(
        range(FIRST_SEED, FIRST_SEED + 20)
    )
    assert all(trial.recipe().evaluate.problems == 512 for trial in grid_of(STUDY, {}))
    fixed = replace(EFFECT, settings=("method.objective.surrogate.low = 2e-3",))
    assert len(sides_of("gspo", fixed)[0].choices({})) == 4  # a bound that the effect sets is not tuned
    assert len(sides_of("luspo", replace(EFFECT, plan="short"))[0].choices({})) == 2


def test_the_largest_score_is_chosen_ties_go_to_the_smaller_rate_and_a_collapse_counts() -> None:
    own, _ = sides_of("gspo", EFFECT)
    rates = sorted({rate_of(x) for x in own.choices({})})

    def chosen(scores: dict[float, float], collapsed: float = 0.0) -> float:
        found = tuned(skill=lambda run: scores.get(rate_of(run.settings), 0.1))
        for run in own.tuning_runs({}):
            if rate_of(run.settings) == collapsed and run.seed == 91:
                found[run] = replace(found[run], metrics={}, tokens=())
        settings = own.chosen(found)
        assert settings is not None
        return rate_of(settings)

    assert chosen({rates[2]: 0.9}) == rates[2]
    assert chosen({rates[1]: 0.9, rates[2]: 0.9}) == rates[1]
    assert chosen({rates[3]: 0.9, rates[1]: 0.2}, collapsed=rates[3]) == rates[1]
    some = tuned()
    some.pop(own.tuning_runs({})[-1])
    assert own.chosen(some) is None and pair_of("gspo", EFFECT, FIRST_SEED, some) is None


def test_a_grid_whose_best_rate_is_at_an_edge_is_extended_there() -> None:
    """By a factor of 3 at a time, until the best has a neighbour on each side, and at most twice."""
    _, parent = sides_of("gspo", EFFECT)

    def factors(best: float) -> list[float]:
        found = tuned(skill=near(parent.rate * best))
        assert parent.is_at_edge(found) == (not 1 / 27 < best < 90)
        assert rate_of(parent.chosen(found) or ()) == pytest.approx(parent.rate * max(min(best, 90), 1 / 27), rel=0.01)
        return [rate_of(x) / parent.rate for x in parent.choices(found)]

    grid = [1 / 3, 1, 3, 10]
    assert factors(1) == factors(3) == pytest.approx(grid, rel=0.01)
    assert factors(1 / 3) == pytest.approx([1 / 9, *grid], rel=0.01)
    assert factors(1 / 9) == factors(1e-4) == pytest.approx([1 / 27, 1 / 9, *grid], rel=0.01)
    assert factors(10) == pytest.approx([*grid, 30], rel=0.01) and factors(1e4) == pytest.approx([*grid, 30, 90], 0.01)
    some = tuned(skill=lambda run: -rate_of(run.settings))
    some = {run: x for run, x in some.items() if rate_of(run.settings) > 0.9 * parent.rate / 3}
    assert parent.chosen(some) is None, "the further rate has not run"


def test_a_rate_is_at_no_edge_if_other_comparisons_have_run_beyond_it() -> None:
    """A rate beyond the best one is tried, whichever comparison tried it; a better one there is a better rate."""
    _, parent = sides_of("gspo", replace(EFFECT, plan="short"))
    found = tuned(Study("gspo", replace(EFFECT, plan="short")), near(1e-9))
    lowest = parent.choices(found)[0]
    assert parent.is_at_edge(found)
    for skill, is_open in ((0.1, False), (0.9, True)):
        beyond = [parent.run(seed, merged(lowest, (f"optimizer.lr = {rate_of(lowest) / 3:.3g}",))) for seed in (90, 91)]
        assert parent.is_at_edge(found | {run: ended(run, skill=skill) for run in beyond}) == is_open
        assert parent.is_at_edge(found | {run: ended(run, skill=skill) for run in beyond[:1]}), "one seed is not enough"


def test_rates_are_chosen_by_accuracy_or_by_what_the_method_keeps() -> None:
    assert plans.tuning_metric(EFFECT) == SKILL == plans.tuning_metric(replace(EFFECT, metric="clip_ratio/region_mean"))
    assert plans.tuning_metric(replace(EFFECT, metric="eval/accuracy")) == "eval/accuracy"
    assert plans.tuning_metric(replace(EFFECT, metric="eval/mean_length", kept="eval/accuracy")) == "eval/accuracy"


def test_a_method_without_a_ratio_takes_one_step_and_its_comparison_too() -> None:
    own, parent = sides_of("grpo", replace(EFFECT, parent="reinforce"))
    steps = [{side.run(90, x).recipe().method.minibatches for x in side.choices({})} for side in (own, parent)]
    assert steps == [{2}, {1}]


def test_methods_of_stored_answers_take_equally_many_steps() -> None:
    """No step on stored answers is off-policy. Against REINFORCE, SFT takes one, as the effect says."""
    for name in ("dpo", "orpo", "kto", "simpo", "sft"):
        assert [x.method.minibatches for x in recipes_of(name)] == ([1, 1] if name == "sft" else [2, 2])
    answers = [x.prompts * x.method.group_size for x in recipes_of("kto")]
    assert answers == [16, 16], "KTO's answers are no pairs"


def recipes_of(name: str) -> list[Recipe]:
    """The recipes of both sides of a stated effect."""
    effect = reference_of(getattr(methods, name)).expected_effect
    assert effect is not None
    return [side.run(90, side.choices({})[0]).recipe() for side in sides_of(name, effect)]


def test_later_settings_replace_earlier_ones() -> None:
    assert merged(("a = 1", "b = 2"), ("a = 3",), ()) == ("a = 3", "b = 2")


# Comparison


def test_a_metric_of_training_is_the_mean_of_the_second_half_and_a_held_out_one_is_the_last() -> None:
    one = result(
        StudyRun("gspo", "calculator", 1), {"entropy": {1: 9.0, 2: 7.0, 3: 2.0, 4: 4.0}, "eval/x": {0: 9.0, 2: 0.5}}
    )
    assert one.value("entropy", 4) == 3.0 and one.value("entropy", 2) == 7.0
    assert one.value("eval/x", 4) == one.value("eval/x", 3) == 0.5 and math.isnan(one.value("eval/x", 1))
    assert math.isnan(one.value("reward", 4))


def test_at_equal_tokens_the_longer_run_is_read_at_the_others_total_between_evaluations() -> None:
    effect = replace(EFFECT, runs_matched_by="tokens")
    own, parent = StudyRun("gspo", "calculator", 1), StudyRun("grpo", "calculator", 1)
    held_out = {0: 0.0, 2: 0.4, 4: 0.8}
    long = result(own, {"entropy": {1: 1.0, 2: 2.0, 3: 8.0, 4: 9.0}, "eval/x": held_out}, tokens=(20, 20, 20, 20))
    short = result(parent, {"entropy": {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}, "eval/x": held_out}, tokens=(10, 10, 10, 20))
    assert values_of(effect, "entropy", long, short) == (2.0, 0.5)
    assert values_of(effect, "eval/x", long, short) == (pytest.approx(0.5), 0.8)  # 50 tokens: a quarter past 40
    assert values_of(EFFECT, "entropy", long, short) == (8.5, 0.5)
    assert long.at_tokens("eval/x", 80) == 0.8 and math.isnan(long.at_tokens("reward", 50))
    for metric, every in (("eval/accuracy", 2), ("entropy", 0)):
        sides = sides_of("gspo", replace(effect, metric=metric))
        assert {side.run(90, x).recipe().evaluate.every for side in sides for x in side.choices({})} == {every}


def test_a_run_that_collapsed_has_no_accuracy_left() -> None:
    own, parent = StudyRun("gspo", "calculator", 1), StudyRun("grpo", "calculator", 1)
    gone = replace(result(own, {}), tokens=())
    assert values_of(EFFECT, SKILL, gone, ended(parent)) == (0.0, 0.5)
    assert math.isnan(values_of(EFFECT, "entropy", gone, ended(parent))[0])


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.3, 0.31, 0.29, 0.3, 0.3], "shown"),
        ([-0.3, -0.31, -0.29, -0.3, -0.3], "opposite"),
        ([0.05, 0.04, 0.05, 0.05, 0.05], "absent"),
        ([0.0, 0.1, 0.5, 0.0, 0.1], "undecided"),
        ([0.0, 0.0, 0.0, 0.0, 0.0], "undecided"),  # equal runs
    ],
)
def test_a_verdict_needs_an_interval_and_a_mean_that_counts(differences: list[float], verdict: str) -> None:
    comparison = compare("gspo", EFFECT, results_of(differences))
    assert comparison is not None and comparison.verdict == verdict and str(comparison).startswith(verdict)
    down = EffectComparison(
        replace(EFFECT, direction="down"), tuple(-x for x in differences), (0.0,) * len(differences)
    )
    assert down.verdict == verdict


def test_the_looks_are_at_five_ten_and_twenty_seeds_and_end_with_the_first_that_decides() -> None:
    open_, clear = [0.0, 0.1, 0.5, -0.5, -0.1], [0.3, 0.31, 0.29, 0.3, 0.3]
    for n, due, made in ((0, 5, None), (4, 5, None), (5, 10, 5), (9, 10, 5), (10, 20, 10), (20, 20, 20)):
        found = results_of((open_ * 4)[:n])
        comparison = compare("gspo", EFFECT, found)
        assert seeds_due(STUDY, found) == due and (comparison and len(comparison.differences)) == made
        assert comparison is None or comparison.verdict == "undecided"
    more = compare("gspo", EFFECT, results_of(clear + [-0.3] * 5))
    assert more is not None and more.verdict == "shown" and len(more.differences) == 5
    assert seeds_due(STUDY, results_of(clear)) == 5
    short = Study("luspo", replace(EFFECT, plan="short"))
    assert seeds_due(short, results_of(open_, short)) == 5  # its plan has one look
    assert compare("gspo", EFFECT, results_of(clear), first_seed=200) is None
    again = Study("gspo", replace(EFFECT, first_seed=200))
    assert compare("gspo", again.effect, results_of(clear)) is None, "an effect that is stated again has other seeds"
    seeds = {run.seed for run in needed_trials([again], tuned())} - {90, 91}
    assert seeds == set(range(200, 205)) and unread_trials(results_of(clear, again)) != []


def test_a_best_rate_at_an_edge_of_the_largest_grid_is_undecided() -> None:
    """Another rate may be better."""
    differences, found = [0.3, 0.31, 0.29, 0.3, 0.3], {}
    for rate in (1e-4, 1e9):
        found = tuned(skill=near(rate))
        for seed, difference in enumerate(differences, FIRST_SEED):
            own, parent = pair_of("gspo", EFFECT, seed, found) or ()
            found |= {own: ended(own, entropy=1.0 + difference), parent: ended(parent)}
        comparison = compare("gspo", EFFECT, found)
        assert comparison is not None
        assert (comparison.verdict, comparison.obstacle) == (
            ("undecided", "a best rate at an edge") if rate > 1 else ("shown", "")
        )


def test_no_room_equal_runs_and_a_mechanism_that_did_not_act_are_undecided() -> None:
    up = replace(EFFECT, metric="eval/accuracy", min_difference=0.05)
    high = EffectComparison(up, (0.99, 0.985, 0.98), (0.96, 0.97, 0.965))
    assert (high.verdict, high.obstacle, high.room) == ("undecided", "no room", pytest.approx(0.035))
    down = replace(EFFECT, metric="frac_reward_zero_std", direction="down", min_difference=0.1)
    assert EffectComparison(down, (0.0, 0.0, 0.0), (0.05, 0.06, 0.05)).obstacle == "no room"
    acts = replace(EFFECT, acted="clip_ratio/region_mean", acted_least=0.01)
    still = EffectComparison(acts, (1.3, 1.31, 1.3), (1.0, 1.0, 1.0), acted_values=(0.009,))
    assert (still.verdict, still.obstacle, still.room) == ("undecided", "it did not act", None)
    assert replace(still, acted_values=(0.002, 0.019)).verdict == "shown"
    assert replace(still, acted_values=(0.01, math.nan)).obstacle == "acted: not stored"
    assert EffectComparison(EFFECT, (1.0, 1.0), (1.0, 1.0)).obstacle == "equal runs"
    unlearned = replace(still, acted_values=(), parent_gain=-0.05)
    assert (unlearned.verdict, unlearned.obstacle) == ("undecided", "the parent unlearns")
    assert unlearned.p == 1.0 > replace(unlearned, parent_gain=0.0).p, (
        "what decides nothing adds nothing to corrections"
    )
    runs = [
        result(StudyRun("grpo", "calculator", seed), {SKILL: {0: 0.5, 4: end}}) for seed, end in ((1, 0.4), (2, 0.3))
    ]
    assert gain_of(runs, SKILL) == pytest.approx(-0.15) and gain_of(runs, "eval/accuracy") is None


def test_absent_needs_room_of_twice_the_smallest_difference_that_counts() -> None:
    """A ceiling makes any difference small. It leaves a difference that is shown, or is opposite."""
    up = replace(EFFECT, metric="eval/accuracy", min_difference=0.05)
    for parent, word, why in ((0.91, "undecided", "little room"), (0.89, "absent", "")):
        small = EffectComparison(up, (parent + 0.01, parent, parent - 0.01), (parent,) * 3)
        assert (small.verdict, small.obstacle) == (word, why)
    lower = EffectComparison(up, (0.6, 0.61, 0.59), (0.91,) * 3)
    higher = EffectComparison(up, (0.99, 0.98, 0.985), (0.91,) * 3)
    assert (lower.verdict, lower.obstacle, higher.verdict, higher.obstacle) == ("opposite", "", "shown", "")
    assert EffectComparison(EFFECT, (0.01, 0.0, -0.01), (0.0,) * 3).verdict == "absent", "entropy has no ceiling"


def test_absent_of_an_accuracy_needs_a_parent_that_learns() -> None:
    """Two methods that learn nothing do not differ. A length or an entropy is no gain, nor is a loss."""
    up = replace(EFFECT, metric="eval/accuracy", min_difference=0.05)
    small = EffectComparison(up, (0.31, 0.3, 0.29), (0.3,) * 3, parent_gain=0.04)
    assert (small.verdict, small.obstacle) == ("undecided", "the parent hardly learns")
    assert replace(small, parent_gain=0.05).verdict == "absent" == replace(small, parent_gain=None).verdict
    clear = replace(small, method_values=(0.6, 0.61, 0.59))
    assert (clear.verdict, clear.obstacle) == ("shown", "")
    for metric in ("entropy", "eval/mean_length", "outcome/correct"):
        assert replace(small, expected_effect=replace(up, metric=metric)).verdict == "absent"
    harm = replace(up, acted=SKILL, acted_least=0.05, acted_in="parent")
    assert replace(small, expected_effect=harm, acted_values=(0.2,), parent_gain=-0.2).verdict == "absent"


@pytest.mark.parametrize(("least", "verdict", "why"), [(0.1, "shown", ""), (0.2, "undecided", "it did not act")])
def test_an_effect_about_a_loss_of_accuracy_needs_a_parent_that_unlearns(least: float, verdict: str, why: str) -> None:
    effect = replace(EFFECT, acted=SKILL, acted_least=least, acted_in="parent")
    runs = []
    for seed in range(FIRST_SEED, FIRST_SEED + 5):
        own, parent = (
            result(
                StudyRun(name, "calculator", seed), {"entropy": {4: x + seed / 1e4}, SKILL: {0: 0.6, 2: 0.9, 4: 0.45}}
            )
            for name, x in (("gspo", 1.3), ("grpo", 1.0))
        )
        runs.append((replace(own, metrics={**own.metrics, "entropy": {4: 1.3}}), parent))
    found = comparison_of(effect, runs)
    assert found is not None and found.acted == pytest.approx(0.15) == -(found.parent_gain or 0)
    assert (found.verdict, found.obstacle) == (verdict, why)
    other = comparison_of(replace(effect, acted="", acted_least=0.0), runs)
    assert other is not None and other.obstacle == "the parent unlearns"
    assert "acted: the parent's lost `eval/accuracy_greedy` at least 0.05, rings, 128 problems" in page({})


@pytest.mark.parametrize(("side", "value"), [("method", 0.4), ("parent", 0.02)])
def test_the_figure_of_a_harm_is_that_of_the_parents_runs(side: str, value: float) -> None:
    effect = replace(EFFECT, acted="clip_ratio/region_mean", acted_least=0.03, acted_in=side)
    runs = []
    for seed in range(FIRST_SEED, FIRST_SEED + 5):
        pair = [StudyRun(name, "calculator", seed) for name in ("gspo", "grpo")]
        own, parent = (result(run, {"entropy": {4: x + seed / 1e4}}) for run, x in zip(pair, (1.3, 1.0), strict=True))
        own = replace(own, metrics={**own.metrics, "entropy": {4: 1.3}, effect.acted: {1: 0.4, 2: 0.4}})
        runs.append((own, replace(parent, metrics={**parent.metrics, effect.acted: {1: 0.04, 2: 0.0}})))
    found = comparison_of(effect, runs)
    assert found is not None and found.acted == pytest.approx(value)
    assert (found.verdict, found.obstacle) == (("shown", "") if side == "method" else ("undecided", "it did not act"))
    bare = [tuple(replace(run, metrics={"entropy": run.metrics["entropy"]}) for run in pair) for pair in runs]
    unstored = comparison_of(effect, bare)
    assert unstored is not None and (unstored.verdict, unstored.obstacle) == ("undecided", "acted: not stored")


def test_rates_that_tuning_does_not_separate_decide_where_the_difference_holds_at_a_common_one() -> None:
    """The method takes three times its parent's rate, by less accuracy than tuning separates."""
    own, parent = sides_of("gspo", EFFECT)
    skills = {("gspo", 3): 0.9, ("gspo", 1): 0.89, ("grpo", 1): 0.9}

    def skill(run: StudyRun) -> float:
        return skills.get((run.method, round(rate_of(run.settings) / parent.rate)), 0.5)

    found = {
        run: ended(run, skill=skill(run), entropy=1.2 if run.method == "gspo" else 1.0) for run in tuned(skill=skill)
    }
    assert [round(rate / parent.rate) for rate in own.left(found)] == [3, 1] and len(parent.left(found)) == 1
    assert differences_at_common_rates("gspo", EFFECT, found) == pytest.approx((0.2,))
    skills["gspo", 1] = 0.87
    assert not differences_at_common_rates("gspo", EFFECT, tuned(skill=skill)), "the tuning seeds separate these rates"
    assert not differences_at_common_rates("gspo", EFFECT, tuned()), "both have the same rate"
    shown = compare("gspo", EFFECT, results_of([0.3, 0.31, 0.29, 0.3, 0.3]))
    assert shown is not None and shown.verdict == replace(shown, at_common=(0.2, 0.1)).verdict == "shown"
    for turned in (-0.2, 0.05, math.nan):
        undecided = replace(shown, at_common=(0.2, turned))
        assert (undecided.verdict, undecided.obstacle, undecided.p) == ("undecided", NOT_SEPARATED, 1.0)


def test_a_figure_is_stated_with_the_least_value_that_counts() -> None:
    for given in ({"acted": "entropy"}, {"acted_least": 0.1}):
        with pytest.raises(ValueError, match="state both"):
            replace(EFFECT, **given)
    repairs = {name: reference_of(getattr(methods, name)).expected_effect for name in ("cispo", "etr", "ngrpo")}
    assert {effect.acted_in for effect in repairs.values()} == {"parent"}
    assert "acted: the parent's `sampling/sampling_logp_difference/mean` at least 0.05, " in page({})


def test_an_effect_without_enough_runs_is_undecided_with_the_seeds_that_it_needs() -> None:
    lines = [line for line in page({}).splitlines() if "not enough runs |" in line]
    assert len(lines) == len(studies()) and all(" | none" in line for line in lines)
    assert any(re.search(r" \| none, (\d+|more than 100) \| ", line) for line in lines)
    n = sum(study.effect.kind == "learning" and not study.lesson for study in studies())
    text = summary(dict.fromkeys(studies()))
    assert f"**Learning**: of {n} effects {n} undecided, {n} of them without enough runs." in text
    found = results_of([0.0, 0.1, 0.5, -0.5, -0.1])
    comparison = compare("gspo", EFFECT, found)
    assert comparison is not None and to_decide(comparison, 5) == ["more than 100"]
    assert to_decide(replace(comparison, at_edge=True), 5) == [] == to_decide(None, 0)


def test_a_method_that_shortens_keeps_its_accuracy_or_has_not_shown_its_claim() -> None:
    effect = replace(EFFECT, direction="down", kept=SKILL, kept_margin=0.05)
    shorter = EffectComparison(effect, (-0.3, -0.31, -0.29), (0.0, 0.0, 0.0))
    for kept, verdict in (
        ((0.0, 0.01, -0.01), "shown"),
        ((-0.3, -0.31, -0.3), "opposite"),
        ((0.1, -0.3, 0.2), "undecided"),
    ):
        assert replace(shorter, kept_differences=kept).verdict == verdict


def test_a_verdict_needs_every_first_model_on_one_side() -> None:
    values = (0.5, 0.5, 0.5, 0.5, -0.01, 0.5, 0.5, 0.5, 0.5)
    one = EffectComparison(EFFECT, values, (0.0,) * 9, bases=(0,) * 9)
    assert one.verdict == "shown"
    assert replace(one, bases=(0, 0, 0, 1, 2, 1, 0, 0, 1)).verdict == "undecided"
    apart = replace(one, method_values=(0.01, 0.2, 0.02) * 7, parent_values=(0.0,) * 21, bases=(0, 1, 2) * 7)
    assert (apart.verdict, apart.obstacle) == ("undecided", "first models differ")
    early = replace(one, method_values=(0.01, 0.3, -0.01) * 3, parent_values=(0.0,) * 9, bases=(0, 1, 2) * 3)
    assert (early.verdict, early.obstacle) == ("undecided", ""), "more seeds are due"
    large = replace(apart, method_values=(0.2, 0.5, 0.21) * 7)
    assert (large.verdict, large.obstacle) == ("shown", ""), "they differ in size alone"
    assert "first models +0.01, +0.2, +0.02" in differences(apart) and "first models" not in differences(one)
    pairs = [pair_of("gspo", EFFECT, seed, tuned()) for seed in range(FIRST_SEED, FIRST_SEED + 6)]
    assert [own.base for own, _ in filter(None, pairs)] == [1, 2, 0, 1, 2, 0] and WHOLE.bases == 3


def test_only_learning_counts_above_and_corrections_are_over_the_page() -> None:
    rows = {STUDY: compare("gspo", EFFECT, results_of([0.3, 0.31, 0.29, 0.3, 0.3]))}
    clipped = Study("grpo", replace(EFFECT, metric="clip_ratio/region_mean", parent="reinforce"))
    rows[clipped] = EffectComparison(clipped.effect, (0.5, 0.51, 0.5), (0.0, 0.0, 0.0))
    weak = Study("dapo", EFFECT)
    rows[weak] = EffectComparison(EFFECT, (0.4, 0.2, 0.3, 0.2), (0.0, 0.0, 0.0, 0.0))
    by = "that are *shown* or *opposite*, corrections for the whole page keep:"
    assert summary(rows).splitlines()[:2] == [
        f"**Learning**: of 2 effects 2 shown. Of 2 {by} Holm 2, BH 2.",
        f"**Mechanism**: of 1 effects 1 shown. Of 1 {by} Holm 1, BH 1.",
    ]
    kept = corrected(rows)
    assert kept[STUDY] == kept[clipped] == "Holm, BH" and rows[weak].p < 0.05 and kept[weak] == "Holm, BH"
    blocked = {**rows, weak: replace(rows[weak], at_edge=True)}
    assert corrected(blocked).keys() == {STUDY, clipped} and blocked[weak].p == 1.0
    many = {
        **rows,
        **{Study(f"x{i}", EFFECT): EffectComparison(EFFECT, (0.1, -0.2, 0.1), (0.0,) * 3) for i in range(9)},
    }
    assert corrected(many)[weak] == "" and corrected(many)[STUDY] == "Holm, BH"


def test_what_holds_by_construction_is_no_learning() -> None:
    """A reward rises where it is one; every group with a written solution has a signal."""
    for name in ("multi_objective_grpo", "fgrpo", "format_length"):
        effect = reference_of(getattr(methods, name)).expected_effect
        assert effect is not None and effect.kind == "mechanism"
        assert replace(effect, metric="eval/accuracy", is_rewarded=False).kind == "learning"
    assert {study.method for study in RESTATED} == {"ppo", "grpo", "rloo", "reinforce_pp", "dagrpo"}
    for study in RESTATED:
        now = reference_of(getattr(methods, study.method)).expected_effect
        assert now is not None and (now.metric, now.first_seed) == ("eval/accuracy", 200)
        assert study.effect.metric != now.metric and study.effect.first_seed == FIRST_SEED
    then = page({}).partition("## Stated before")[2].partition("## Grids")[0]
    assert then.count("\n| [") == len(RESTATED)


def test_a_row_says_what_its_sides_have_not_equal() -> None:
    """Optimizer steps, answers, problems, the other accuracy, CPU seconds, and the settings of a run against itself."""
    ppo, kto, flow = (
        Study(name, reference_of(getattr(methods, name)).expected_effect or EFFECT)
        for name in ("ppo", "dpo", "flow_grpo")
    )
    assert claim(ppo).endswith("calculator, equal tokens, optimizer steps 96, the parent's 6")
    assert claim(kto).endswith("hinted_sums, equal iterations, answers 96, the parent's 48")
    assert "rings, 128 problems, equal tokens" in claim(flow)
    assert against(flow) == "itself: `method.denoise.steps = 10`, not `40`; `iterations = 40`, not `10`"
    runs = []
    for seed in range(FIRST_SEED, FIRST_SEED + 5):
        pair = [StudyRun(name, "calculator", seed) for name in ("gspo", "grpo")]
        own, parent = (
            result(run, {"eval/accuracy": {4: x}, SKILL: {4: y}}, tokens=tokens)
            for run, x, y, tokens in zip(pair, (0.7, 0.5), (0.8, 0.9), ((20,) * 4, (10,) * 4), strict=True)
        )
        runs.append((replace(own, cpu_seconds=27.0), parent))
    found = comparison_of(replace(EFFECT, metric="eval/accuracy"), runs)
    assert found is not None and found.cpu_ratio == 3.0 and differences(found).endswith("; greedy -0.1 (-0.1 to -0.1)")
    greedy = comparison_of(replace(EFFECT, metric=SKILL), runs)
    assert greedy is not None and "; sampled +0.2 (" in differences(greedy)
    at_tokens = replace(EFFECT, metric="eval/accuracy", runs_matched_by="tokens")
    assert cost_of(at_tokens, [run for run, _ in runs]) == pytest.approx(27 / 80)


def test_what_is_decided_is_shown_first_and_modified_trees_are_named() -> None:
    rows = {STUDY: compare("gspo", EFFECT, results_of([0.3, 0.31, 0.29, 0.3, 0.3]))}
    rows[Study("dapo", EFFECT)] = compare("gspo", EFFECT, results_of([0.0, 0.1, 0.5, -0.5, -0.1]))
    rows[Study("cispo", EFFECT)] = None
    (row,) = decided(rows, corrected(rows))
    assert row[0].startswith("[gspo]") and row[1] == "*shown*" and row[-1] == "Holm, BH"
    clean, other = (StudyRun(name, "calculator", 1) for name in ("gspo", "grpo"))
    runs = {clean: result(clean, {}), other: replace(result(other, {}), commit="c-modified")}
    assert "differed from its commit (*modified*): 1 of [grpo](methods.md#grpo)." in cost(runs)
    assert "modified" not in cost({clean: runs[clean]})


def test_an_incomplete_look_or_a_metric_that_is_absent_is_no_measurement() -> None:
    assert compare("gspo", EFFECT, results_of([0.3] * 4)) is None
    assert compare("gspo", replace(EFFECT, metric="reward"), results_of([0.3, 0.3, 0.3, 0.3, 0.31])) is None


# Code


MURPHY = "methods.sampling.murphy"


@pytest.mark.parametrize(
    ("room", "old", "new", "same"),
    [
        ("objective.ratios", "MAX_LOG_RATIO = 20.0", "MAX_LOG_RATIO = 21.0", False),
        ("objective.ratios", '"""', '"""Another docstring. ', True),
        ("objective.ratios", "p: float = 0.0", "p: float = 2.0", True),
        ("objective.objective", "use sequence_mean or group_mean", "use another", True),
        (MURPHY, 'Role("refinement", "of a failed attempt")', 'Role("refinement", "elsewhere")', True),
        (MURPHY, '@verdicts_have("returned")', '@verdicts_have("returned", "other")', True),
        (MURPHY, "needs_feedback: ClassVar[bool] = True", "needs_feedback: ClassVar[bool] = False", True),
        (MURPHY, "self.gamma * fmean(refined)", "fmean(refined)", False),
    ],
    ids=["used", "docstring", "unused", "message", "role", "subscores", "feedback", "formula"],
)
def test_the_hash_covers_parts_and_their_functions_but_no_message(monkeypatch, room, old, new, same) -> None:
    """Nor a declaration that only `check` reads."""
    method = murphy() if room == MURPHY else gspo()
    before, file, plain = code_hash(method), f"groupwise.{room}", hashing.inspect.getsource
    changed = plain(hashing.sys.modules[file]).replace(old, new, 1)
    assert changed != plain(hashing.sys.modules[file])
    monkeypatch.setattr(
        hashing.inspect, "getsource", lambda module: changed if module.__name__ == file else plain(module)
    )
    hashing._definitions.cache_clear()
    assert (code_hash(method) == before) is same
    hashing._definitions.cache_clear()


def test_the_hash_covers_constants() -> None:
    assert len({code_hash(gspo()), code_hash(grpo()), code_hash(gspo(low=0.1))}) == 3


def test_a_run_on_another_packaged_model_is_stale() -> None:
    run = result(StudyRun("gspo", "calculator", 1), {})
    assert run.model_hash and not stored.is_stale(run)
    assert stored.is_stale(replace(run, model_hash=stored.packaged_weights("hinted_sums")))
    assert stored.packaged_weights("some/model") == ""


def test_a_changed_part_makes_a_row_stale_and_its_runs_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = results_of([0.3, 0.3, 0.3, 0.3, 0.31])
    own, _ = pair_of("gspo", EFFECT, FIRST_SEED + 1, fresh) or ()
    old = {**fresh, own: replace(fresh[own], code_hash="old")}
    comparison = compare("gspo", EFFECT, old)
    assert comparison is not None and comparison.stale and str(comparison).endswith("changed since")
    assert running.is_measured(own, {"entropy"}, fresh) and not running.is_measured(own, {"entropy"}, old)
    assert not running.is_measured(own, {"reward"}, fresh)


# Runs


def test_finished_runs_are_skipped(tmp_path: Path) -> None:
    trial, file = StudyRun("gspo", "calculator", 1, ONE), tmp_path / "results.jsonl"

    def run(seconds: float = math.inf) -> list:
        return list(running.run_all({trial: {"reward"}}, file, tmp_path, HOME, seconds))

    assert run(0.0) == [] and not file.exists()
    ((done, first),) = run()
    assert done == trial and isinstance(first, StudyRunResult) and 0 < first.tokens[0] <= 8 and len(first.tokens) == 1
    assert set(first.metrics["reward"]) == {1} and set(first.metrics["eval/accuracy"]) == {0, 1}
    assert stored.read_results(file) == {trial: first} and run() == []
    ((_, other),) = running.run_all({trial: {"reward_std"}}, file, tmp_path, HOME, math.inf)
    assert isinstance(other, StudyRunResult) and {"reward", "reward_std"} <= other.metrics.keys()
    stored.write_results(file, [replace(first, code_hash="old")])
    ((_, again),) = run()
    assert replace(again, cpu_seconds=0.0) == replace(first, cpu_seconds=0.0)
    with running.lock(tmp_path / "locks" / running.directory_name(trial)):
        file.unlink()
        assert run() == []


def test_a_run_that_fails_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    broken, good = (
        StudyRun("gspo", "calculator", 1, (*ONE, "method.trained_roles = x")),
        StudyRun("gspo", "calculator", 1, ONE),
    )
    trials = {broken: {"reward"}, good: {"reward"}}
    (_, error), (_, done) = running.run_all(trials, tmp_path / "r.jsonl", tmp_path, HOME, math.inf)
    assert isinstance(error, Exception) and isinstance(done, StudyRunResult)


def test_the_warm_start_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def train(recipe, out, name):
        trained.append(name)
        model = out / f"{name}-0" / "model"
        model.mkdir(parents=True, exist_ok=True)
        return type("Run", (), {"model_dir": model, "stop_reason": "interrupted" if len(trained) == 1 else ""})

    monkeypatch.setattr(running, "train", train)
    plain, warm = (StudyRun("gspo", task, 1).recipe() for task in ("calculator", "edges"))
    other = StudyRun("gspo", "edges", 1, ("warm_start.steps = 9",)).recipe()
    assert running.start_model("calculator", plain, tmp_path) == "calculator" and trained == []
    with pytest.raises(KeyboardInterrupt):  # a stopped run has a model, too, and is not the one that was asked for
        running.start_model("edges", warm, tmp_path)
    first = running.start_model("edges", warm, tmp_path)
    assert running.start_model("edges", warm, tmp_path) == first != running.start_model("edges", other, tmp_path)
    assert len(trained) == 3 and all(name.startswith("start-edges-") for name in trained)


def test_a_run_whose_training_fails_is_a_result_and_costs_all_its_processes(tmp_path: Path, monkeypatch) -> None:
    """A rate at which a method collapses counts in the grid, so the run is not made again."""

    def train(recipe, **options):
        sum(i * i for i in range(10**6))
        raise Diverged("steps were skipped", fix="lower optimizer.lr")

    monkeypatch.setattr(running, "train", train)
    trial, file = StudyRun("gspo", "calculator", 1, ONE), tmp_path / "results.jsonl"
    ((_, gone),) = running.run_all({trial: {"reward"}}, file, tmp_path, HOME, math.inf)
    assert isinstance(gone, StudyRunResult) and gone.tokens == () and gone.metrics["reward"] == {}
    assert list(running.run_all({trial: {"reward"}}, file, tmp_path, HOME, math.inf)) == []
    times = iter([(1.0, 1.0, 2.0, 1.0, 0.0), (2.0, 1.0, 6.0, 2.0, 0.0)])
    monkeypatch.setattr(running.os, "times", lambda: next(times))
    assert running.run_trial(trial, (), tmp_path, HOME).cpu_seconds == 6.0


def test_a_first_model_is_trained_once_with_its_seed(tmp_path: Path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(first_models, "trained", lambda name, seed: made.append((name, seed)) or (name, seed))
    monkeypatch.setattr(first_models, "write_model", lambda model, path, tokenizer: path.mkdir())
    paths = [first_models.first_model("calculator", seed, tmp_path) for seed in (1, 2, 1)]
    assert made == [("calculator", 1), ("calculator", 2)] and paths[0] == paths[2] != paths[1]
    assert first_models.first_model("blank", 1, tmp_path) == "blank" and len(made) == 2
    recipe = StudyRun("gspo", "calculator", 1).recipe()
    assert running.start_model("calculator", recipe, tmp_path / "other", 2) == str(
        tmp_path / "other/models/calculator-2"
    )
    names = {running.directory_name(StudyRun("gspo", "edges", 1, base=base)) for base in (0, 1, 2)}
    assert len(names) == 3


@pytest.mark.parametrize("name", ["calculator", "rings"])
def test_the_seed_of_a_first_model_changes_its_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = first_models.read
    monkeypatch.setattr(first_models, "read", lambda *given: replace(read(*given), steps=1, demonstrations=2))
    monkeypatch.setitem(flow_models.MODELS, "rings", replace(flow_models.MODELS["rings"], steps=1))
    one, two, again = (
        torch.cat([p.flatten() for p in first_models.trained(name, s)[0].parameters()]) for s in (1, 2, 1)
    )
    assert torch.equal(one, again) and not torch.equal(one, two)


def test_a_share_of_the_stored_runs_is_repeated_and_compared(tmp_path: Path, monkeypatch, capsys) -> None:
    runs = results_of([0.3] * 5)
    trial = next(iter(runs))
    other = replace(runs[trial], metrics={**runs[trial].metrics, "entropy": {1: 1.25, 2: 1.0, 3: 1.0, 4: 1.0}})
    lines = list(repeated_differences(runs, {**runs, trial: other}))
    assert lines[0].endswith("entropy at iteration 1 differs by 0.25")
    assert lines[-1] == f"{len(runs) - 1} of {len(runs)} runs are equal to the last stored digit"
    (tmp_path / RESULTS).parent.mkdir(parents=True)
    stored.write_results(tmp_path / RESULTS, runs.values())
    monkeypatch.setattr(command, "HOME", tmp_path)
    monkeypatch.setattr(command, "studies", lambda names: [STUDY])
    taken = []

    def run_all(trials, file, *others, **options):
        taken.append(sorted(map(repr, trials)))
        stored.write_results(file, [runs[trial] for trial in trials])
        return iter(())

    monkeypatch.setattr(command, "run_all", run_all)
    words = ["gspo", "--fresh", str(tmp_path / "again"), "--share", "0.1"]
    for seed in ("3", "3", "4"):
        assert command.main([*words, "--draw-seed", seed]) == 0
    assert taken[0] == taken[1] != taken[2] and len(taken[0]) == math.ceil(0.1 * len(runs))
    assert f"{len(taken[0])} of {len(taken[0])} runs are equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fresh", "x"], "go together"),
        (["--share", "0.1", "--draw-seed", "1"], "go together"),
        (["--page", "--share", "0.1"], "go together"),
        (["--fresh", "x", "--share", "2", "--draw-seed", "1"], "at most 1"),
        (["--page", "--base-seed", "7"], "take one"),
    ],
)
def test_options_that_would_do_nothing_are_errors(words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(words)
    assert message in capsys.readouterr().err


def test_other_fresh_seeds_are_run_at_the_stored_choices_and_printed_beside_the_stored_result(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    runs = results_of([0.3, 0.31, 0.29, 0.3, 0.3])
    (tmp_path / RESULTS).parent.mkdir(parents=True)
    stored.write_results(tmp_path / RESULTS, runs.values())
    monkeypatch.setattr(command, "HOME", tmp_path)
    monkeypatch.setattr(command, "studies", lambda names: [STUDY])

    def run_all(trials, file, *others, **options):
        made = {trial: ended(trial, entropy=0.7 if trial.method == "gspo" else 1.0) for trial in trials}
        values = [
            replace(x, metrics={**x.metrics, "entropy": {4: x.value("entropy", 4) + t.seed / 1e4}})
            for t, x in made.items()
        ]
        stored.write_results(file, [*stored.read_results(file).values(), *values])
        yield from made.items()

    monkeypatch.setattr(command, "run_all", run_all)
    before = (tmp_path / RESULTS).read_text()
    assert command.main(["gspo", "--base-seed", "200", "--runs", str(tmp_path / "runs")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| gspo |"))
    assert "shown: +0.3" in row.split("|")[2] and "undecided" not in row and (tmp_path / RESULTS).read_text() == before
    assert {run.seed for run in stored.read_results(tmp_path / "runs/other_seeds.jsonl")} == set(range(200, 205))


# The page


def test_the_page_is_that_of_the_stored_results() -> None:
    assert (HOME / command.PAGE).read_text() == page(stored.read_results(HOME / RESULTS))


def test_every_method_has_a_row_or_a_reason() -> None:
    text = page({})
    for method in published:
        reference = reference_of(method)
        assert f"| [{method.__name__}](methods.md#{method.__name__}) |" in text
        assert reference.expected_effect is None or reference.expected_effect.metric in text


@pytest.mark.parametrize("study", studies(), ids=lambda study: study.method)
def test_both_recipes_of_an_effect_are_valid(study: Study) -> None:
    own, parent = (side.run(90, side.choices({})[0]).recipe() for side in sides_of(study.method, study.effect))
    assert own != parent and own.task == parent.task
    assert (
        own.prompts == parent.prompts
        or own.prompts * own.method.group_size == parent.prompts * parent.method.group_size
        or study.effect.runs_matched_by == "tokens"
    ), "equal iterations have equally many prompts or answers"
    assert not dry_run(own) and not dry_run(parent)


def test_a_parents_runs_are_shared() -> None:
    chosen = [STUDY, Study("dapo", replace(EFFECT, metric="reward"))]
    needed = needed_trials(chosen, {})
    assert len(needed) == len(grid_of(STUDY, {})) + len(sides_of("dapo", EFFECT)[0].tuning_runs({}))
    parent = sides_of("gspo", EFFECT)[1]
    assert needed[parent.tuning_runs({})[0]] == {SKILL}, "a grid is read by one metric"
    acts = Study("gspo", replace(EFFECT, acted="reward", acted_least=0.1))
    fresh = {run: names for run, names in needed_trials([acts], tuned()).items() if run.seed == FIRST_SEED}
    assert {run.method: names for run, names in fresh.items()} == {
        "gspo": {"entropy", SKILL, "reward"},
        "grpo": {"entropy", SKILL},
    }, "a figure of the method's mechanism is read from its own runs"
    first = [study.method for study in command.in_order(())][: len(FIRST_METHODS)]
    assert set(first) <= set(FIRST_METHODS) and list(LOOKS) == [5, 10, 20]
    whole = {study.method for study in studies() if study.effect.plan == "whole"}
    assert whole == set(FIRST_METHODS) and len(whole) == 15


def test_only_fresh_results_are_in_a_certificate(tmp_path: Path) -> None:
    effect = reference_of(gspo).expected_effect
    assert effect is not None
    study = Study("gspo", effect)
    fresh: dict[StudyRun, StudyRunResult] = {}
    skill = near(sides_of("gspo", effect)[1].rate)
    while missing := [run for run in grid_of(study, fresh) if run not in fresh]:
        fresh |= {run: result(run, {effect.metric: {4: skill(run)}, effect.acted: {4: 0.5}}) for run in missing}
    for seed in range(FIRST_SEED, FIRST_SEED + 5):
        for run, x in zip(pair_of("gspo", effect, seed, fresh) or (), (0.8 + seed / 1e4, 0.5), strict=True):
            fresh[run] = result(run, {effect.metric: {4: x}, effect.acted: {4: 0.5}})
    (tmp_path / RESULTS).parent.mkdir(parents=True)
    stored.write_results(tmp_path / RESULTS, fresh.values())
    measured = measured_effect("gspo", reference_of(gspo), tmp_path)
    assert measured is not None and measured.as_json()["result"] == "shown" and measured.acted == 0.5
    stored.write_results(tmp_path / RESULTS, [replace(one, code_hash="old") for one in fresh.values()])
    assert measured_effect("gspo", reference_of(gspo), tmp_path) is None


# Earlier results


def test_earlier_results_are_shown_as_such_and_are_the_pilot_of_equal_comparisons() -> None:
    earlier = read_earlier()
    assert len(earlier) > 80 and {x.word for x in earlier} <= {"shown", "not shown", "opposite"}
    text = page({})
    _, _, section = text.partition("## By earlier rules")
    assert "**no\nverdict here**" in section and section.count("| *undecided*") > 20
    dispo = next(study for study in studies() if study.method == "dispo")
    pilot = pilot_of(dispo, earlier)
    assert pilot is not None and pilot.seeds_needed == 5
    changed = next(study for study in studies() if study.method == "grpo")  # REINFORCE takes one step now
    assert pilot_of(changed, earlier) is None and steps_changed(changed)


def test_the_rows_of_two_comparisons_are_those_of_the_generator() -> None:
    """No training problem is held out."""
    for folder, files in problems.files().items():
        stored_files = {path.name: path.read_text("utf-8") for path in (problems.FOLDER / folder).iterdir()}
        assert stored_files == files
        prompts = [json.loads(line)["prompt"] for text in files.values() for line in text.splitlines()]
        assert len(set(prompts)) == len(prompts)
