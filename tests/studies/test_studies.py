"""The studies: recipes resolve, pages and tables equal the stored results, and the exact parts obey their laws."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from benchmarks.atlas import running
from studies.divisors import MicrobatchMean
from studies.dynamic_sampling import ARMS, accuracies
from studies.figures import THEME, need_matplotlib
from studies.pages import RESULTS, csv_text, filled, read_exact, total_cost, written
from studies.stable_rates import HIGH, LOW, RIGHT, mean_spread, over_rates, rung
from studies.study import LEAST_ACCURACY, SEEDS, Arm, Estimate, Measured, Study, judged_estimates
from studies.tuning import FRESH, at_best_rates, chosen, grid_of, grid_table, tuned_runs
from tools.missing_runs import FILE, missing_runs

from groupwise.certificates.studies import StudyRun, StudyRunResult, read_results, write_results
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.core import MissingRequirement
from groupwise.data import pack, rollout_of
from groupwise.evaluation.interval import mean_p
from groupwise.methods import dapo, dr_grpo, grpo
from groupwise.models import find_model, read_tokenizer
from groupwise.objective import Clip, complete, group_token_mean, sequence_mean, token_mean
from groupwise.rewards import mixed_outcomes
from groupwise.tasks import DataRows
from groupwise.tasks.largest import is_held_out
from groupwise.training.build_tasks import task_of, templates
from studies import __main__ as command
from studies import (
    claims,
    clip_higher,
    dense_twin,
    difficulty,
    dynamic_sampling,
    engine_logprobs,
    gspo_regimes,
    index,
    ladder,
    ladder_equal_tokens,
    levels,
    mixtures,
    moe,
    push,
    smollm2,
    smollm2_templates,
)
from studies import running as study_runs
from tests.processes import PATIENCE

HOME = Path(__file__).parents[2]
STUDIES = [study_runs.find_study(name) for name in command.NAMES]
NAMED = pytest.mark.parametrize("study", STUDIES, ids=command.NAMES)


def test_every_study_file_is_listed_and_states_its_comparison_first() -> None:
    files = {path.stem for path in (HOME / "studies").glob("*.py") if "STUDY = " in path.read_text("utf-8")}
    assert files == set(command.NAMES)
    for study, name in zip(STUDIES, command.NAMES, strict=True):
        text = (HOME / "studies" / f"{name}.py").read_text("utf-8")
        assert study.name == name and len(text.splitlines()) < 150
        assert "Stated before the runs." in text.partition("\nfrom ")[0]


def test_no_stored_run_has_become_stale() -> None:
    """What `make atlas` and `make studies` would run now is listed: a rename must not add to it unnoticed."""
    why = "stored runs became stale, or fresh; if this is meant, run: python -m tools.missing_runs"
    assert FILE.read_text("utf-8").splitlines() == missing_runs().splitlines(), why


def test_every_stored_run_belongs_to_a_study() -> None:
    assert command.unread_trials(read_results(HOME / RESULTS)) == []
    other = StudyRun("grpo", "coin", 0)
    assert command.unread_trials({other: result(other, 0.0)}) == [other]


@NAMED
def test_recipes_resolve(study) -> None:
    recipes = [trial.recipe() for trial in study.trials([0])]
    assert len({repr(recipe) for recipe in recipes}) == len(recipes) > 1
    own = sum(len(study.parts[part]) * len(seeds) for part, seeds in study.seeds.items())
    assert {recipe.seed for recipe in recipes} == {0} and len(study.trials(SEEDS)) == len(recipes) * len(SEEDS) + own


@NAMED
def test_pages_and_tables_equal_the_stored_results(study) -> None:
    texts = written(study, HOME)
    has_results = next(iter(study.parts)) in study.measured(read_results(HOME / RESULTS))
    assert (HOME / study.page) in texts and (study.svg(HOME).with_suffix(".csv") in texts) is has_results
    for path, text in texts.items():
        assert path.read_text("utf-8") == text, f"python -m studies {study.name} --page"


@NAMED
def test_numbers_of_the_prose_are_those_of_the_tables(study) -> None:
    """Each decimal number in a page's conclusions is in its tables, or in the statement of the study, as printed."""
    page, statement = (HOME / study.page).read_text("utf-8"), sys.modules[study.blocks.__module__].__doc__
    _, _, prose = page.partition("## What this does and does not show")
    tables = re.findall(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->", page, re.DOTALL)
    known = [float(x) for _, text in [*tables, ("", statement)] for x in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)]
    numbers = re.findall(r"(?<![\d.:/])\d+\.\d+(?![\d.])", re.sub(r"\d{4}\.\d{5}", "", prose))
    assert prose
    for number in numbers:
        half = 0.5 * 10 ** -len(number.partition(".")[2]) + 1e-9
        assert any(abs(x - float(number)) <= half for x in known), f"{number} is not in a table of {study.page}"


@NAMED
def test_figures_have_an_alternative_text_and_both_modes(study) -> None:
    if next(iter(study.parts)) not in study.measured(read_results(HOME / RESULTS)):
        assert not study.svg(HOME).exists() and "*Not run yet.*" in (HOME / study.page).read_text("utf-8")
        return
    svg = study.svg(HOME).read_text("utf-8")
    assert f'aria-label="{study.alt}"'.replace("'", "&#x27;") in svg and "prefers-color-scheme:dark" in svg
    assert not any(stand_in in svg for stand_in in THEME)


def test_only_seeds_with_every_arm_count_and_differences_are_paired() -> None:
    arms = {name: Arm(label=name, method=name, task="coin") for name in ("grpo", "dapo")}
    values = {("grpo", 0): 1.0, ("dapo", 0): 2.0, ("grpo", 1): 5.0, ("dapo", 1): 7.0, ("grpo", 2): 9.0}
    results = {arms[name].trial(seed): result(arms[name].trial(seed), x) for (name, seed), x in values.items()}
    m = Measured(arms, results)
    assert m.seeds == (0, 1)
    assert STUDIES[0].measured(results) == {} and STUDIES[0].not_run("coin").endswith("makes these 20 runs.")
    difference = m.mean("dapo", "entropy", 2, 3).minus(m.mean("grpo", "entropy", 2, 3))
    assert difference.values == (1.0, 2.0) and str(difference) == "1.5 (-4.85 to 7.85)"
    assert [Estimate(x).verdict for x in ((1.0, 1.1), (-1.0, -1.1), (1.0, -1.0))] == [
        "*shown*",
        "*opposite*",
        "*undecided*",
    ]
    assert Estimate((1.0, 1.1, 0.9)).excludes_zero and not difference.excludes_zero
    small = m.mean("dapo", "entropy", 2, 3).minus(Estimate((2.0, 7.0)), least=9.0)
    assert (small.values, small.least, difference.least) == ((0.0, 0.0), 9.0, 0.0)
    assert [Estimate((0.1, -0.1, 0.0), least).verdict for least in (0.0, 0.2, 0.5)] == [
        "*undecided*", "*undecided*", "*absent*"]  # fmt: skip


def test_an_interval_in_a_sentence_has_two_digits_and_never_hides_that_it_excludes_zero() -> None:
    assert Estimate((-0.1, -0.3)).brief == "-0.2 (-1.5 to 1.1)" and Estimate((40.0, 80.0)).brief == "60 (-194 to 314)"
    assert Estimate((-0.0276, -0.0152, -0.0043)).brief == "-0.016 (-0.045 to 0.013)"
    assert Estimate((0.1 - 1e-5, -0.1 - 1e-5)).brief == "0.0 (-1.3 to 1.3)"  # not -0.0
    barely = Estimate((0.1373, 0.1173))
    assert barely.brief == "0.1273 (0.0002 to 0.2544)" and barely.stated("rises", "falls").endswith("; *rises*)")
    assert Estimate((20.0, 20.0)).brief == "20.00 (20.00 to 20.00)"
    assert Estimate((3.0,)).brief == "3.00 (-inf to inf)"


def result(trial: StudyRun, value: float) -> StudyRunResult:
    metrics = {"entropy": {1: 99.0, 2: value - 1, 3: value + 1}}
    return StudyRunResult(
        trial=trial, metrics=metrics, tokens=(10, 10, 10), cpu_seconds=9.0, commit="c", recipe_hash="r", code_hash="x"
    )


def test_equal_tokens_count_all_generated_tokens() -> None:
    def run(trial: StudyRun, tokens: int) -> StudyRunResult:
        points = {i: i / 100 for i in (0, 4, 8, 12, 16)}
        found = replace(result(trial, 0.0), metrics={"eval/accuracy": points}, tokens=(tokens,) * 16)
        return replace(found, cpu_seconds=float(tokens + 100))

    m = Measured(ARMS, {arm.trial(0): run(arm.trial(0), {"off": 100, "on": 230}[key]) for key, arm in ARMS.items()})
    assert accuracies(m, "iterations")["on"].values == (0.16,)
    assert accuracies(m, "generated tokens")["on"].values == pytest.approx((0.16 / 2.3,))  # between two evaluations
    seconds = {"off": [3e-5], "on": [2e-5]}  # of a token in training: those of evaluations are in none
    assert accuracies(m, "CPU seconds", seconds)["on"].values == pytest.approx((0.16 * 300 / 460,), rel=1e-3)
    costs = ("iterations", None), ("generated tokens", None), ("CPU seconds", seconds)
    assert {accuracies(m, name, by_token)["off"].values for name, by_token in costs} == {(0.16,)}


def test_the_seconds_of_a_token_are_those_of_runs_without_evaluations() -> None:
    arms = dynamic_sampling.STUDY.parts["seconds"]
    for key, arm in arms.items():
        watched, own = ARMS[key].trial(0).recipe(), arm.trial(0).recipe()
        assert own.method == watched.method and (own.evaluate.every, own.evaluate.problems) == (0, 1)
    (seeds,) = dynamic_sampling.STUDY.seeds.values()
    m = dynamic_sampling.STUDY.measured(
        {
            replace(arm.trial(seed), base=seed % 3): replace(result(arm.trial(seed), 0.0), cpu_seconds=x)
            for (arm, x) in zip(arms.values(), (6.0, 3.0), strict=True)
            for seed in seeds
        }
    )["seconds"]
    by_token = dynamic_sampling.seconds_per_token(m)
    assert by_token["off"] == pytest.approx([0.2] * 5) and by_token["on"] == pytest.approx([0.1] * 5)


def test_a_part_with_seeds_of_its_own_runs_with_them_from_three_first_models() -> None:
    study, (seeds,) = ladder.STUDY, ladder.STUDY.seeds.values()
    runs = study.trials(SEEDS, ["equal_tokens"])
    assert {(run.seed, run.base) for run in runs} == {(seed, seed % 3) for seed in seeds} and len(runs) == 20
    assert not {*seeds} & {*SEEDS, *FRESH, 90, 91} and set(runs) <= set(study.trials(SEEDS))
    assert not study.trials([0, 1], ["equal_tokens"]) and study.not_run("equal_tokens").endswith("these 20 runs.")
    m = study.measured({run: result(run, 0.0) for run in runs}, [0, 1])
    assert list(m) == ["equal_tokens"] and m["equal_tokens"].seeds == tuple(seeds)
    assert m["equal_tokens"].estimate(range(10)).level == 1 - 0.0221


def test_the_ladder_is_read_at_the_tokens_of_naive_grpo() -> None:
    """The accuracy of the last rung is linear between two evaluations, and that at its end if it generates less."""
    arms, naive, whole = ladder.STUDY.parts["equal_tokens"], {0: 0.1, 30: 0.3}, {0: 0.1, 10: 0.3, 30: 0.6}

    def run(trial: StudyRun, points: dict[int, float], tokens: int) -> StudyRunResult:
        return replace(result(trial, 0.0), metrics={"eval/accuracy": points}, tokens=(tokens,) * 30)

    for tokens, expected in ((15, 0.45), (20, 0.375), (9, 0.6)):
        results = {arms["naive"].trial(0): run(arms["naive"].trial(0), naive, 10),
                   arms["whole"].trial(0): run(arms["whole"].trial(0), whole, tokens)}  # fmt: skip
        assert ladder_equal_tokens.gain(Measured(arms, results)).values == pytest.approx((expected - 0.3,))
    recipes = [arm.trial(0).recipe() for arm in arms.values()]
    rungs = [ladder.arms()[name].trial(0).recipe() for name in ("naive GRPO", "dynamic sampling")]
    assert [recipe.method for recipe in recipes] == [rung.method for rung in rungs]
    assert [recipe.evaluate.every for recipe in recipes] == [0, 2]


def test_a_bound_that_clips_next_to_nothing_decides_nothing() -> None:
    """The share of the first iterations decides: a larger bound may leave nothing to clip later."""
    arms = clip_higher.ARMS

    def run(trial: StudyRun, clipped: float) -> StudyRunResult:
        values = {"entropy": 0.1 * trial.seed, "eval/pass@64": 0.5, "eval/accuracy": 0.5}
        more = 0.1 * (trial == arms["0.4"].trial(trial.seed))
        points = {name: dict.fromkeys(range(31), x + more) for name, x in values.items()}
        high = {i: clipped if i <= 5 else 0.0 for i in range(1, 31)}
        return replace(result(trial, 0.0), metrics={**points, "clip_ratio/high_mean": high})

    for clipped, obstacle in ((0.009, "it did not act"), (0.011, "")):
        runs = {arm.trial(seed): run(arm.trial(seed), clipped) for arm in arms.values() for seed in (0, 1, 2)}
        more = clip_higher.gains(Measured(arms, runs), "0.4")["entropy"]
        assert more.obstacle == obstacle and more.word == ("undecided" if obstacle else "shown")
        assert more.verdict == ("*undecided*: it did not act" if obstacle else "*shown*")


def test_the_dense_twin_decides_nothing_at_rates_that_the_methods_share() -> None:
    m = dense_twin.STUDY.measured(at_shared_rates())
    texts = dense_twin.blocks(m, {})
    assert texts["twin"].count("*one rate*") == 3 and "*undecided*" not in texts["twin"]
    differences = [dense_twin.gain_in(m["both"], name) for name in dense_twin.NAMES]
    assert all(x.stated() in texts["dense_twin"] for x in (*differences, dense_twin.more_in_mixture(m["both"])))


def test_the_ladder_ends_with_dapo_and_each_rung_adds_its_technique() -> None:
    methods, whole = [trial.recipe().method for trial in ladder.STUDY.trials([0])], dapo(group_size=8, minibatches=4)
    assert methods[-1] == replace(whole, mask=(complete,))
    plain = replace(whole.objective, surrogate=Clip(0.2, 0.2), aggregate=sequence_mean)
    assert methods[0].objective == plain and not methods[0].mask
    assert [method.filter is mixed_outcomes for method in methods] == [False] * 5 + [True]
    assert [len(method.shaping) for method in methods] == [1, 1, 1, 2, 2, 2]
    assert len({repr(method) for method in methods}) == len(ladder.PAPER) == 6


def test_the_largest_stable_rate_is_counted_within_a_seed() -> None:
    def run(trial: StudyRun, last: float) -> StudyRunResult:
        points = {i: 0.4 if i <= 5 else last for i in range(1, moe.LAST + 1)}
        spreads = {LOW: dict.fromkeys(points, 0.5), HIGH: dict.fromkeys(points, 2.0)}
        return replace(result(trial, 0.0), metrics={RIGHT: points, **spreads})

    falls = {"grpo 2e-4": 0.3, "grpo 1.4e-4": 0.1, **{f"R2 {rate}": 0.0 for rate in moe.RATES}}
    arms = {name: (arm.trial(0), falls.get(name, 0.5)) for name, arm in moe.ARMS["rates"].items()}
    m = Measured(moe.ARMS["rates"], {trial: run(trial, last) for trial, last in arms.values()})
    assert [rung(m, key, moe.RATES, moe.LAST).values for key in ("grpo", "gspo", "R2")] == [(1.0,), (3.0,), (0.0,)]
    assert over_rates(m, "grpo", RIGHT, moe.RATES, 16, 20).mean == pytest.approx(0.3)
    assert mean_spread(m, "gspo", moe.RATES, 1, 5).mean == pytest.approx(math.log(4))


def test_the_old_logprobs_of_the_engine_are_compared_under_the_same_engine() -> None:
    values = {"gspo stale engine": 0.7, "gspo stale learner": 0.5, "grpo stale engine": 0.4, "grpo stale learner": 0.5}
    arms = {key: engine_logprobs.ARMS[key] for key in values}

    def run(trial: StudyRun, right: float) -> StudyRunResult:
        points = {i: 0.0 if i <= 10 else right for i in range(1, engine_logprobs.LAST + 1)}
        return replace(result(trial, 0.0), metrics={RIGHT: points})

    m = Measured(arms, {arms[key].trial(0): run(arms[key].trial(0), x) for key, x in values.items()})
    assert engine_logprobs.change(m, "gspo", "stale").mean == pytest.approx(0.2)
    assert engine_logprobs.change(m, "grpo", "stale").mean == pytest.approx(-0.1)
    for engine in engine_logprobs.ENGINES:
        pair = [engine_logprobs.ARMS[f"gspo {engine} {source}"].trial(0).recipe() for source in ("learner", "engine")]
        assert [recipe.method.old_logprobs for recipe in pair] == ["learner", "engine"]
        assert replace(pair[1], method=pair[0].method) == pair[0]


def test_the_base_of_a_seed_is_made_once_and_again_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixtures, "SIZES", {**mixtures.SIZES, "num_experts": 8, "num_hidden_layers": 1})
    monkeypatch.setattr(mixtures, "STEPS", 1)
    monkeypatch.setattr(mixtures, "PER_STEP", 4)

    def weights(seed: int, name: str) -> bytes:
        return (Path(mixtures.mixture(seed, tmp_path / name).model) / "model.safetensors").read_bytes()

    assert weights(1, "a") == weights(1, "b") != weights(2, "a")
    trial = moe.ARMS["rates"]["grpo 1e-4"].trial(1)
    assert trial.recipe().model in mixtures.BASES
    first = running.on_base(trial.recipe(), tmp_path, mixtures.BASES)
    monkeypatch.setattr(running, "train", None)
    assert running.on_base(trial.recipe(), tmp_path, mixtures.BASES) == first and Path(first.model).is_dir()
    plain = read_recipe(find_recipe("calculator"))
    assert running.on_base(plain, tmp_path, {}) is plain


def test_a_killed_command_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, runs = STUDIES[0], []

    def run_trial(trial: StudyRun, *others: object) -> StudyRunResult:
        runs.append(trial)
        if len(runs) == 6:
            raise KeyboardInterrupt
        metrics = {name: {1: 0.0} for name in study.metrics}
        recipe = trial.recipe()
        model = running.packaged_weights(recipe.model)
        return replace(
            result(trial, 0.0), metrics=metrics, code_hash=running.code_hash(recipe.method), model_hash=model
        )

    monkeypatch.setattr(running, "run_trial", run_trial)
    trials = list(study.trials([0, 1], ["coin"]))
    with pytest.raises(KeyboardInterrupt):
        study_runs.run(study.name, [0, 1], ["coin"], math.inf, tmp_path)
    with running.lock(tmp_path / "runs" / "studies" / "locks" / running.directory_name(trials[6])):
        assert study_runs.run_jobs(1, study.name, [0, 1], ["coin"], math.inf, tmp_path) == 1  # another process runs it
    assert trials[6] not in read_results(tmp_path / RESULTS)
    assert study_runs.run_jobs(1, study.name, [0, 1], ["coin"], math.inf, tmp_path) == 0
    assert runs == [*trials[:6], trials[5], trials[7], trials[6]] and set(read_results(tmp_path / RESULTS)) == set(
        trials
    )


@pytest.mark.slow
def test_two_processes_share_the_trials_of_a_study() -> None:
    assert study_runs.run_jobs(2, "length_bias", [90], ["coin"], 0.0, HOME) == 4  # no time is left: none starts


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not end the processes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_processes_end_with_a_command_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    code = "import math, pathlib; from studies.running import run_jobs; "
    code += f"run_jobs(2, 'clip_fraction', range(5), [], math.inf, pathlib.Path({str(tmp_path)!r}))"
    words = [sys.executable, "-c", f"if __name__ == '__main__':\n    {code}"]
    locks = tmp_path / "runs" / "studies" / "locks"
    with subprocess.Popen(words, cwd=HOME, stdout=subprocess.DEVNULL) as command:
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        assert until(lambda: locks.is_dir() and len(list(locks.iterdir())) >= 2, PATIENCE)  # both train
        workers = [Path("/proc") / pid for pid in children.read_text().split()]
        command.send_signal(number)
    assert len(workers) >= 2 and until(lambda: not any(map(Path.exists, workers)), PATIENCE)
    for path in locks.iterdir():
        with running.lock(path, wait=False) as held:
            assert held


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_the_cost_counts_each_run_once_and_missing_ones_with_the_mean_of_their_part() -> None:
    coin = STUDIES[0].trials(SEEDS, ["coin"])
    stored = {trial: replace(result(trial, 0.0), cpu_seconds=30.0) for trial in list(coin)[:4]}
    text = total_cost(STUDIES, stored)
    assert text.startswith("All studies together are ") and "; 4 are stored" in text and "further runs" in text
    assert total_cost([STUDIES[0]], stored).startswith("All studies together are 20 runs, which take 10 CPU minutes")
    every = {trial: stored[next(iter(coin))] for trial in STUDIES[0].trials(SEEDS)}
    assert total_cost([STUDIES[0]], every).endswith("without the warm starts; all are stored.")
    page = (HOME / command.INDEX).read_text("utf-8")
    assert total_cost(STUDIES, read_results(HOME / RESULTS)) in page, "python -m studies --page"


def test_the_index_has_each_study_once_with_its_verdict() -> None:
    """A verdict follows from the interval and the side that the paper claims."""
    assert sorted(effect.study.name for effect in index.EFFECTS) == sorted(command.NAMES)
    blocks, page = (
        index.index_blocks(read_results(HOME / RESULTS), read_exact(HOME), claims.fresh_results(HOME)),
        (HOME / command.INDEX).read_text(),
    )
    assert filled(page, blocks) == page, "python -m studies --page"
    sides = [(1.0, 1.1, 0.9), (-1.0, -1.1, -0.9), (1.0, -1.0, 0.1), (0.01, -0.01, 0.0)]
    claim = replace(index.EFFECTS[0], estimates=lambda m, exact: [Estimate(x, 0.1) for x in sides])
    assert claim.verdicts({}, {}) == ["shown", "opposite", "undecided", "absent"]
    assert replace(claim, sign=-1).verdicts({}, {}) == ["opposite", "shown", "undecided", "absent"]
    assert replace(claim, border=2.0).verdicts({}, {}) == ["opposite", "opposite", "undecided", "opposite"]


def test_each_stated_comparison_has_a_smallest_difference_that_counts() -> None:
    results, exact = read_results(HOME / RESULTS), read_exact(HOME)
    for effect in index.EFFECTS:
        own = exact.get(effect.study.name, {})
        estimates = effect.estimates(effect.study.measured(results), own)
        assert estimates and all(x.least > 0 for x in estimates), effect.study.name
        assert [x.least for x in effect.claimed(effect.study.measured(results), own)] == [x.least for x in estimates]


def at_shared_rates() -> dict[StudyRun, StudyRunResult]:
    """The stored results without those that choose rates, or compare the best ones."""
    return {run: x for run, x in read_results(HOME / RESULTS).items() if run.seed in SEEDS}


def test_a_comparison_of_methods_at_one_rate_is_undecided_until_each_has_its_best() -> None:
    results, exact = at_shared_rates(), read_exact(HOME)
    (shared,) = [effect for effect in index.EFFECTS if effect.study.name == "ladder"]
    assert shared.study.tuned and not at_best_rates(shared.study, results)
    row = next(text for text in index.index_blocks(results, exact, {})["effects"].splitlines() if "(ladder.md)" in text)
    assert row.split(" | ")[1].startswith("undecided: not enough runs; at one rate: ")
    assert all(study.tuned.keys() <= study.parts.keys() for study in STUDIES)
    best = dict(results)
    choose_rates(shared.study, best)

    def accuracy(run: StudyRun) -> float:
        return 0.7 + run.seed / 1e4 if "method.filter = mixed_outcomes" in run.settings else 0.5

    assert {run.seed for run in with_runs(shared.study, best, accuracy)} == set(FRESH[:5])
    assert with_runs(shared.study, best, accuracy) == []
    row = next(text for text in index.index_blocks(best, exact, {})["effects"].splitlines() if "(ladder.md)" in text)
    assert row.split(" | ")[1] == "shown" and row.split(" | ")[3] == "5"


def ended(trial: StudyRun, accuracy: float) -> StudyRunResult:
    """A run of the ladder that ended with an accuracy."""
    metrics = {name: {0: 0.5, 26: 0.5, 30: accuracy} for name in ladder.STUDY.metrics}
    return replace(result(trial, 0.0), metrics=metrics, tokens=(10,) * 30)


def test_an_arm_chooses_its_rate_on_tuning_seeds_and_is_compared_on_fresh_ones() -> None:
    (choice,), arm = ladder.STUDY.tuned.values(), ladder.STUDY.parts["rungs"]["naive GRPO"]
    grid = grid_of(arm, choice, {})
    rates = [one.trial(0).recipe().optimizer.lr for one in grid]
    assert rates == pytest.approx([1e-4, 3e-4, 9e-4, 3e-3])
    accuracies = dict(zip(rates, (0.4, 0.6, 0.6, 0.9), strict=True))
    results = {
        one.trial(seed): ended(one.trial(seed), accuracies[rate]) for one, rate in zip(grid, rates) for seed in (90, 91)
    }
    assert chosen(arm, choice, results) is None
    *_, further = grid_of(arm, choice, results)
    assert further.trial(0).recipe().optimizer.lr == pytest.approx(9e-3), "the best rate is at an edge"
    results |= {further.trial(seed): ended(further.trial(seed), 0.2) for seed in (90, 91)}
    assert chosen(arm, choice, results) == grid[3]
    results[grid[3].trial(91)] = replace(results[grid[3].trial(91)], metrics={}, tokens=())
    assert chosen(arm, choice, results) == grid[1]  # the largest rate collapsed; of equal ones the smaller
    row = "| naive GRPO | 0.0003 (or 0.0009) | 0.0001: 0.400; 0.0003: 0.600; 0.0009: 0.600; 0.003: collapsed |"
    assert row in grid_table(ladder.STUDY, "rungs", choice, results)
    fresh = {run.seed for run in tuned_runs(ladder.STUDY, results)} - {90, 91}
    assert not fresh, "the other rungs have not chosen"
    del results[grid[0].trial(90)]
    assert chosen(arm, choice, results) is None
    assert {run.seed for run in tuned_runs(ladder.STUDY, results)} == {90, 91}


def with_runs(study: Study, results: dict, accuracy: Callable[[StudyRun], float]) -> list[StudyRun]:
    """Store the runs that follow, and return them."""
    runs = [run for run in tuned_runs(study, results) if run not in results]
    results.update({run: ended(run, accuracy(run)) for run in runs})
    return runs


def choose_rates(study: Study, results: dict) -> None:
    """Store the runs of a study's grids. Each arm ends best at the rate that the arms share."""
    shared = {arm.trial(0).recipe().optimizer.lr for part in study.tuned for arm in study.parts[part].values()}

    def accuracy(run: StudyRun) -> float:
        return 0.5 if min(abs(run.recipe().optimizer.lr / rate - 1) for rate in shared) < 0.01 else 0.4

    with_runs(study, results, accuracy)


def test_an_arm_whose_best_rate_is_at_an_edge_of_the_largest_grid_decides_nothing() -> None:
    """A verdict of other arms stays. No further seeds run: another rate may be better."""
    results = at_shared_rates()

    def accuracy(run: StudyRun) -> float:
        is_whole = "method.filter = mixed_outcomes" in run.settings
        rate = run.recipe().optimizer.lr
        if run.seed not in FRESH:
            return 0.5 - 10 * rate if is_whole else 0.5 - 0.01 * abs(math.log(rate / 3e-4))
        return 0.7 + run.seed / 1e4 if is_whole else 0.5

    while with_runs(ladder.STUDY, results, accuracy):
        pass
    (m,) = at_best_rates(ladder.STUDY, results).values()
    naive, *_, whole = ladder.RUNGS
    total = ladder.after(m, whole).minus(ladder.after(m, naive), LEAST_ACCURACY)
    assert m.at_edge == {whole} and len(m.seeds) == 5 and m.estimate(total.values).at_edge
    assert (total.word, total.obstacle) == ("undecided", "a best rate at an edge")
    assert total.verdict == "*undecided*: a best rate at an edge"
    assert not ladder.after(m, "token mean").minus(ladder.after(m, naive)).at_edge


def test_absent_needs_room_on_the_side_of_the_claim() -> None:
    """A share of 0.98 cannot rise by 0.05, and can fall."""
    arms = {name: Arm(label=name, method=name, task="coin") for name in ("grpo", "dapo")}
    values = {("grpo", seed): 0.98 for seed in (0, 1, 2)} | {("dapo", seed): 0.98 + 0.001 * seed for seed in (0, 1, 2)}
    results = {
        arms[name].trial(seed): replace(result(arms[name].trial(seed), 0.0), metrics={"eval/pass@64": {3: x}})
        for (name, seed), x in values.items()
    }
    m = Measured(arms, results)
    gain = m.mean("dapo", "eval/pass@64", 3, 3).minus(m.mean("grpo", "eval/pass@64", 3, 3), 0.05)
    assert gain.room == pytest.approx(0.02) and gain.verdict == "*undecided*: little room"
    falls = replace(gain, sign=-1)
    assert falls.room == pytest.approx(0.98) and falls.verdict == "*absent*"
    assert gain.claimed(-1).room == pytest.approx(0.98) and gain.claimed(-1).word == "absent"
    assert gain.claimed(1).obstacle == "little room" and Estimate((0.01, -0.01, 0.0), 0.1).room == math.inf


def test_the_seeds_to_decide_are_those_of_undecided_comparisons() -> None:
    open_ = Estimate((0.0, 0.12, 0.03), 0.1)
    assert index.needed(open_, is_open=False) == ["18"] and index.needed(replace(open_, at_edge=True), False) == []
    shown = Estimate((0.3, 0.31, 0.29), 0.1)
    assert index.needed(shown, is_open=False) == [] and index.needed(shown, is_open=True) == ["5"]


def test_fresh_seeds_run_look_by_look_from_three_first_models_until_one_decides() -> None:
    """The rungs end at equal accuracies but for the last one, whose gain differs between seeds at first."""
    gains = {100: 0.3, 101: -0.3, 102: 0.3, 103: -0.3, 104: 0.1}

    def accuracy(run: StudyRun) -> float:
        is_whole = "method.filter = mixed_outcomes" in run.settings
        return 0.5 + gains.get(run.seed, 0.3 + run.seed / 1e4) * (is_whole and run.seed in FRESH)

    results = at_shared_rates()
    choose_rates(ladder.STUDY, results)
    looks = [with_runs(ladder.STUDY, results, accuracy) for _ in range(4)]
    assert [sorted({run.seed for run in look}) for look in looks] == [
        [*range(100, 105)], [*range(105, 110)], [*range(110, 120)], []
    ]  # fmt: skip
    assert all(run.base == run.seed % 3 for look in looks for run in look)
    (m,) = at_best_rates(ladder.STUDY, results).values()
    total = ladder.after(m, "dynamic sampling").minus(ladder.after(m, "naive GRPO"))
    assert len(m.seeds) == 20 and total.level == 1 - 0.0221 and set(total.bases) == {0, 1, 2}
    assert replace(total, least=0.02).word == "shown"
    values = tuple(-x if base == 1 else x for x, base in zip(total.values, total.bases, strict=True))
    assert replace(total, values=(*[1.0] * 10, -0.1), bases=(*[0] * 10, 1)).word == "undecided", values


def test_a_study_with_models_of_its_own_has_one_for_each_seed() -> None:
    results = dict[StudyRun, StudyRunResult]()
    for run in tuned_runs(dense_twin.STUDY, {}):
        right = dict.fromkeys(range(1, 21), 0.9 if run.recipe().optimizer.lr == 1e-4 else 0.5)
        results[run] = replace(result(run, 0.5), metrics={RIGHT: right}, tokens=(10,) * 20)
    runs = [run for run in tuned_runs(dense_twin.STUDY, results) if run.seed in FRESH]
    assert {run.base for run in runs} == {0} and len(runs) == 4 * 5


def test_verdicts_of_all_pages_are_corrected_together() -> None:
    of_claims = claims.fresh_results(HOME)
    judged = index.judged_by_page(read_results(HOME / RESULTS), read_exact(HOME), of_claims)
    assert judged.keys() == {*command.NAMES, "claims"} and sum(map(len, judged.values())) > 80
    sets = {"a": [(1.0, 1.01, 0.99)], "b": [(1.0, 0.8, 0.3)] * 2 + [(0.1, -0.2, 0.1)]}
    kept = index.corrected({name: list(map(Estimate, values)) for name, values in sets.items()})
    assert kept[1.0, 1.01, 0.99] == (True, True) and kept[0.1, -0.2, 0.1] == (False, False) and len(kept) == 3
    alone, nulls = (1.0, 0.9, 0.5), [(0.1, -0.2, x / 10) for x in range(5)]
    assert index.corrected({"a": [Estimate(alone)]})[alone] == (True, True)
    assert index.corrected({"a": [Estimate(alone)], "b": list(map(Estimate, nulls))})[alone] == (False, False)
    mirrored = {"a": [Estimate(alone)], "b": [Estimate(tuple(-x for x in alone))]}
    assert index.corrected(mirrored).keys() == {alone}, "a verdict and its mirror are one"
    assert index.corrections(mirrored, index.corrected(mirrored)).splitlines()[-1].startswith("| all, each once | 1 |")
    six = claims.CLAIMS["engine-6-bits"].differences(of_claims)
    (own,) = (x for x in judged["claims"] if list(x.values) == six)
    assert own.p == pytest.approx(mean_p(six) * 0.05 / 0.0221) and own.word == "opposite"
    admitted = claims.CLAIMS["sparse-mixture"]
    assert len(judged["claims"]) == len(claims.CLAIMS) - 2 and claims.estimate(admitted, of_claims) is None
    assert Estimate(alone, level=1 - 0.0221).p == pytest.approx(Estimate(alone).p * 0.05 / 0.0221)
    with judged_estimates() as estimates:
        Estimate((1.0, 2.0)).result("a", "b")
    Estimate((3.0, 4.0)).result("a", "b")
    assert [x.values for x in estimates] == [(1.0, 2.0)]


def test_other_seeds_are_printed_beside_the_stored_ones() -> None:
    results = read_results(HOME / RESULTS)
    arms = dynamic_sampling.STUDY.parts["calculator"].values()
    others = {
        arm.trial(seed + 10): replace(results[arm.trial(seed)], trial=arm.trial(seed + 10))
        for arm in arms
        for seed in SEEDS
    }
    text = index.other_seeds(["dynamic_sampling"], results, others, range(10, 15), {})
    row = text.splitlines()[-1].split(" | ")
    assert text.startswith("| effect | stored seeds | seeds 10 to 14 |") and row[1] == row[2].removesuffix(" |")


def test_a_study_without_its_requirement_is_left_out_unless_the_command_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def missing() -> None:
        raise MissingRequirement("no such model", fix="pip install it")

    studies = {"ladder": ladder.STUDY, "smollm2": replace(smollm2.STUDY, requires=missing)}
    ran, pages = [], []
    monkeypatch.setattr(command, "NAMES", tuple(studies))
    monkeypatch.setattr(command, "find_study", studies.__getitem__)
    monkeypatch.setattr(command, "need_matplotlib", lambda: None)
    monkeypatch.setattr(command, "run_jobs", lambda jobs, name, *others: ran.append(name) or 0)
    monkeypatch.setattr(command, "write", lambda study, home: pages.append(study.name))
    monkeypatch.setattr(command, "write_index", lambda home: None)
    monkeypatch.setattr(command, "unread_trials", lambda results: [])
    assert command.main([]) == 0
    assert (ran, pages) == (["ladder"], ["ladder", "smollm2"])
    assert capsys.readouterr().out == "left out: smollm2: no such model\n  do:   pip install it\n"
    assert command.main(["smollm2"]) == MissingRequirement.code
    assert ran == ["ladder"] and "error: no such model\n  do:   pip install it" in capsys.readouterr().err
    assert command.main(["smollm2", "--page"]) == 0 and pages[-1] == "smollm2"


def test_the_files_of_levels_are_those_of_the_generator_and_share_no_problem() -> None:
    stored = {path.name: path.read_text("utf-8") for path in (HOME / "studies" / "levels").iterdir()}
    assert stored == levels.files()
    prompts = {name: {json.loads(line)["prompt"] for line in text.splitlines()} for name, text in stored.items()}
    assert sum(map(len, prompts.values())) == len(set.union(*prompts.values()))


def test_the_held_out_problems_of_levels_are_those_of_the_test_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)  # the paths of a recipe are relative
    recipe = difficulty.ARMS["std"].trial(0).recipe()
    held_out = task_of(recipe, templates(recipe, read_tokenizer(find_model(recipe.model)))).held_out
    evaluated = [prompt.row for prompt in held_out[: recipe.evaluate.problems]]
    assert Counter(row["level"] for row in evaluated) == dict.fromkeys(difficulty.LEVELS, levels.HELD_OUT)
    assert isinstance(recipe.held_out, DataRows)
    stored = [json.loads(line) for line in (HOME / recipe.held_out.source).read_text("utf-8").splitlines()]
    assert [(row["level"], row["answer"]) for row in evaluated] == [(row["level"], row["answer"]) for row in stored]


def test_the_weight_of_a_question_is_its_expected_gradient() -> None:
    """With centred rewards it is (n - 1) / n p (1 - p); with the std it is symmetric, and larger at the ends."""
    centred = replace(grpo(group_size=difficulty.GROUP), advantage=(difficulty.centred,))
    for p in (0.1, 0.5):
        assert difficulty.weight(centred, p) == pytest.approx(15 / 16 * p * (1 - p))
    plain = grpo(group_size=difficulty.GROUP)
    assert difficulty.weight(plain, 0.1) == pytest.approx(difficulty.weight(plain, 0.9))
    assert difficulty.weight(plain, 0.1) / difficulty.weight(plain, 0.5) > 4 * 0.1 * 0.9


def test_the_sums_of_smollm2_are_all_different_and_right_and_enough_are_held_out() -> None:
    rows = [json.loads(line) for line in (HOME / "studies" / "smollm2.jsonl").read_text("utf-8").splitlines()]
    numbers = [tuple(map(int, re.findall(r"\d\d", row["prompt"]))) for row in rows]
    assert [row["prompt"] for row in rows] == [f"What is {a} + {b}?" for a, b in numbers]
    assert list(map(sum, numbers)) == [row["answer"] for row in rows]
    assert len(set(numbers)) == len(rows) == 720 and sum(is_held_out(row["prompt"]) for row in rows) == 72


def test_accuracies_of_templates_are_means_over_seeds_with_intervals_over_problems() -> None:
    def run(trial: StudyRun, low: float) -> StudyRunResult:
        points = {"eval/accuracy": 0.5, "eval/low": low, "eval/high": 0.9}
        return replace(result(trial, 0.0), metrics={name: {0: x} for name, x in points.items()})

    arms = smollm2_templates.TEMPLATES
    m = Measured(
        arms, {arm.trial(seed): run(arm.trial(seed), 0.1 + seed / 5) for arm in arms.values() for seed in (0, 1)}
    )
    assert smollm2_templates.share(m, "r1", "sampled") == pytest.approx((0.5, 0.2, 0.9))


def test_templates_are_compared_before_and_after_training_within_a_seed() -> None:
    """Each is trained as it was evaluated without training; the best minus the worst is taken before and after."""
    for key, arm in smollm2_templates.TRAINED.items():
        untrained, trained = (one.trial(0).recipe() for one in (smollm2_templates.TEMPLATES[key], arm))
        same = {"template": trained.template, "sampling": trained.sampling, "model": trained.model}
        assert {name: getattr(untrained, name) for name in same} == same and trained.iterations == smollm2_templates.FEW
    gains = {"chat": 0.3, "bare": 0.0, "r1": 0.0, "qa": 0.1}

    def run(trial: StudyRun, key: str) -> StudyRunResult:
        before = {"chat": 0.1, "bare": 0.0, "r1": 0.1, "qa": 0.4}[key] + 0.001 * trial.seed
        values = {0: before, smollm2_templates.FEW: before + gains[key] + 0.001 * (trial.seed % 2)}
        return replace(result(trial, 0.0), metrics=dict.fromkeys(smollm2.STUDY.metrics, values))

    arms = smollm2_templates.TRAINED
    results = {arm.trial(seed): run(arm.trial(seed), key) for key, arm in arms.items() for seed in range(5)}
    text = smollm2_templates.trained(Measured(arms, results))
    words = {key: text.splitlines()[2 + i].split(" | ")[-1].strip(" |") for i, key in enumerate(arms)}
    assert words == {"chat": "*rises*", "bare": "*absent*", "r1": "*absent*", "qa": "*rises*"}
    assert "minus the worst: 0.40 (0.40 to 0.40) before and 0.50" in text
    assert "a change of 0.10 (0.10 to 0.10; *grows*), 5 seeds" in text


def test_the_page_of_small_tasks_says_what_grpo_gains_on_wordy_sums() -> None:
    m = gspo_regimes.STUDY.measured(read_results(HOME / RESULTS))["regimes"]
    first, last = (m.mean("grpo longer", "outcome/correct", *ends) for ends in ((1, 5), (16, 20)))
    assert m.arms["grpo longer"].task == "wordy_sums" and len(m.seeds) == 5
    gain = replace(last.minus(first), decides=True)
    low, high = gain.interval
    text = f"rises by {gain.mean:.3f} (95 % interval {low:.3f} to {high:.3f}) from the first five"
    assert text in (HOME / "docs" / "small-tasks.md").read_text("utf-8")


def test_the_push_on_length_is_that_of_the_division_by_length() -> None:
    stored = read_exact(HOME)["length_bias"]
    (wrong, right, every), *_ = push.push(grpo(group_size=16, kl=0.0), batches=1)
    assert wrong > 100 and right < -100 and abs(every) < 60
    assert stored["push"]["grpo"][0][0] == pytest.approx(wrong, rel=1e-4)
    ((wrong, right, _),) = push.push(dr_grpo(group_size=16), batches=1)
    assert abs(wrong) < 2 and abs(right) < 2


@pytest.mark.parametrize(("answers", "same"), [(12, token_mean), (4, group_token_mean), (1, sequence_mean)])
def test_microbatches_of_a_step_of_a_group_and_of_an_answer_are_known_aggregates(answers, same) -> None:
    random = Random(0)
    groups = [rollout_of([0, 1, 1, 0], lengths=[random.randint(1, 9) for _ in range(4)]) for _ in range(3)]
    batch = pack(groups)
    step = batch.having(advantage=torch.ones(batch.tokens, dtype=torch.float64))
    assert torch.allclose(MicrobatchMean(answers)(step), same(step), rtol=1e-12)


def test_marks_csv_and_seeds() -> None:
    assert filled("<!-- a -->\nx\n<!-- /a -->\n<!-- b -->\n<!-- /b -->\n", {"a": "1", "c": "2"}) == (
        "<!-- a -->\n1\n<!-- /a -->\n<!-- b -->\n<!-- /b -->\n"
    )
    assert csv_text([("a", "b"), (1, 0.123456789)]) == "a,b\n1,0.123457\n"
    assert command.seeds_of("0..2") == [0, 1, 2] and command.seeds_of("4") == [4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["length_bias", "--part", "nosuch"], "length_bias has no part 'nosuch': take coin, long"),
        (["--part", "coin"], "--part is a part of one study: name it"),
        (["--seeds", "4..0"], "'4..0' is no choice of the seeds 0 to 4: write 0..4, 3, or 0,2"),
        (["--seeds", "7..9"], "'7..9' is no choice of the seeds 0 to 4"),
        (["--seeds", "abc"], "'abc' is no choice of the seeds 0 to 4"),
        (["--fresh", "x"], "go together"),
        (["--page", "--base-seed", "10"], "take one"),
    ],
)
def test_arguments_that_would_do_nothing_are_errors(words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_share_of_the_stored_runs_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    stored, made = read_results(HOME / RESULTS), []

    def run_trials(study, trials, file, runs, until) -> None:
        made.append(sorted(trials, key=repr))
        write_results(file, [stored[trial] for trial in trials])

    monkeypatch.setattr(command, "run_trials", run_trials)
    monkeypatch.setattr(command, "need_matplotlib", lambda: None)
    for seed in ("1", "1", "2"):
        assert command.main(["clip_fraction", "--fresh", str(tmp_path), "--share", "0.2", "--draw-seed", seed]) == 0
    assert made[0] == made[1] != made[2] and len(made[0]) == 4  # of 20
    assert capsys.readouterr().out.splitlines() == ["4 of 4 runs are equal to the last stored digit"] * 3


def test_wrong_arguments_and_a_missing_package(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(["lenght_bias"])
    assert "no study is called 'lenght_bias'" in capsys.readouterr().err
    monkeypatch.setattr("studies.figures.find_spec", lambda name: None)
    with pytest.raises(MissingRequirement, match="matplotlib"):
        need_matplotlib()
    assert command.main(["length_bias", "--page"]) == MissingRequirement.code
    assert "groupwise[studies]" in capsys.readouterr().err
