"""Claims that are written down before their runs: rates, looks and verdicts, and the parts that their runs load."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.atlas import running
from studies.claim import Claim, state
from studies.dense_twin import PARTS
from studies.engine_kl import KL
from studies.judgement import judged
from studies.kl_notes import EngineKL
from studies.noisy_engine import Noisy, NoisyEngine
from studies.pages import filled
from studies.ratio_spreads import Spreads
from studies.running import HOME
from studies.stable_rates import mean_spread
from studies.study import Measured

from groupwise.certificates.effect_plans import FIRST_SEED, TUNING_SEEDS
from groupwise.certificates.studies import StudyRun, StudyRunResult, read_results
from groupwise.config.diff import diff
from groupwise.config.recipe_toml import write
from groupwise.data import GenerationRequest, pack, rollout_of
from groupwise.engines import NativeEngine
from groupwise.evaluation.interval import t_quantile
from groupwise.evaluation.seed_verdicts import LOOK_LEVEL, LOOKS
from groupwise.models import find_model, read_model, read_tokenizer
from studies import claims, dense_twin, mixtures, pages
from tests.studies.test_studies import result

NAMES = [*claims.CLAIMS]
CLAIM = claims.CLAIMS["noisy-best"]
UNDONE = {
    "dapo-clip-higher": {"objective.surrogate.high"},
    "dapo-overlong": {"shaping"},
    "dapo-token-mean": {"objective.aggregate"},
}
"""The fields of DAPO's techniques."""
ACTED = {claim.acted[0] for claim in claims.CLAIMS.values() if claim.acted}


def result_of(trial: StudyRun, value: float) -> StudyRunResult:
    """A fresh result whose metrics all have one value."""
    recipe = trial.recipe()
    metrics = {name: dict.fromkeys(range(1, 21), value) for name in (CLAIM.metric, *CLAIM.beside)}
    model = running.packaged_weights(recipe.model)
    return replace(result(trial, 0.0), metrics=metrics, code_hash=running.code_hash(recipe.method), model_hash=model)


@pytest.mark.parametrize("name", NAMES)
def test_recipes_resolve_and_the_sides_differ_as_the_claim_says(name: str) -> None:
    claim = claims.CLAIMS[name]
    one, other = (claim.trial(side, claim.rates[0], FIRST_SEED, claim.choices(side)[0]).recipe() for side in (0, 1))
    assert one.seed == other.seed == FIRST_SEED and one.optimizer == other.optimizer
    changed = {line.partition(" = ")[0] for line in set(write(one).splitlines()) ^ set(write(other).splitlines())}
    if name.startswith("engine"):
        assert changed == {"old_logprobs"}
    elif name == "admission":
        assert changed == {"model"} and {one.model, other.model} <= claim.bases.keys()
    elif name in UNDONE:
        assert {line.partition(":")[0] for line in diff(one.method, other.method)} == UNDONE[name]
        assert one.evaluate.problems == 512 and other == replace(one, method=other.method)
    elif name == "sparse-mixture":
        assert one == replace(other, method=one.method) and one.model == "@sparse"
    else:
        assert one.engine == other.engine and one.method.old_logprobs == other.method.old_logprobs == "engine"
    assert all((HOME / path).is_file() for path in claim.use)
    assert list(claim.rates) == sorted(claim.rates)


def test_each_side_takes_its_best_rate_and_the_smaller_one_in_a_tie() -> None:
    values = {3e-5: 0.2, 1e-4: 0.5, 3e-4: 0.5, 1e-3: 0.1}
    trials = {
        CLAIM.trial(side, rate, seed): x for side in (0, 1) for rate, x in values.items() for seed in TUNING_SEEDS
    }
    results = {trial: result_of(trial, x) for trial, x in trials.items()}
    assert CLAIM.best_rate(0, results) == 1e-4
    results[CLAIM.trial(1, 3e-4, TUNING_SEEDS[1])] = result_of(CLAIM.trial(1, 3e-4, TUNING_SEEDS[1]), 0.6)
    assert CLAIM.best_rate(1, results) == 3e-4
    collapsed = CLAIM.trial(1, 3e-4, TUNING_SEEDS[0])
    results[collapsed] = replace(results[collapsed], metrics={}, tokens=())
    assert CLAIM.best_rate(1, results) == 1e-4  # a run without the metric counts as 0
    del results[CLAIM.trial(0, 1e-3, TUNING_SEEDS[0])]
    assert CLAIM.best_rate(0, results) is None
    assert CLAIM.next_runs(results) == [CLAIM.trial(0, 1e-3, TUNING_SEEDS[0])]


def test_a_side_takes_the_best_of_its_bounds_each_at_its_own_best_rate() -> None:
    claim = claims.CLAIMS["tailed-noisy"]
    paper, wider, widest = claim.bounds
    values = {
        paper: {3e-5: 0.1, 1e-4: 0.2, 3e-4: 0.3, 1e-3: 0.1},
        wider: {3e-5: 0.1, 1e-4: 0.4, 3e-4: 0.2, 1e-3: 0.1},
        widest: {3e-5: 0.1, 1e-4: 0.4, 3e-4: 0.1, 1e-3: 0.1},
    }
    trials = {claim.trial(0, rate, seed, bounds): x for bounds, grid in values.items() for rate, x in grid.items()
              for seed in TUNING_SEEDS}  # fmt: skip
    results = {trial: result_of(trial, x) for trial, x in trials.items()}
    assert claim.choice(0, results) == (wider, 1e-4), "the narrower bounds in a tie"
    assert claim.choice(1, results) is None and not list(claim.pairs(results))
    assert {claim.trial(1, rate, seed) for rate in claim.rates for seed in TUNING_SEEDS} == {*claim.next_runs(results)}
    results |= {run: result_of(run, 0.9) for run in [claim.trial(0, 3e-4, seed, paper) for seed in TUNING_SEEDS]}
    assert claim.choice(0, results) == (paper, 3e-4)


def test_a_look_decides_at_its_own_bound_and_the_last_one_ends_the_claim() -> None:
    assert not judged([0.05, 0.06, 0.04, 0.05], 0.03).is_final
    assert judged([-0.05, -0.06, -0.04, -0.05, -0.05], 0.03).word == "opposite"
    assert judged([0.001, -0.001, 0.0, 0.001, -0.001], 0.03).word == "absent"
    # Student's 95 % interval of these excludes 0, that of a look does not
    five = [0.01, 0.09, 0.04, 0.02, 0.08]
    mean, deviation = math.fsum(five) / 5, (sum((x - 0.048) ** 2 for x in five) / 4) ** 0.5
    t = mean / deviation * 5**0.5
    assert 2.776 < t < t_quantile(4, LOOK_LEVEL) and not judged(five, 0.03).is_final
    assert judged([*five, *five], 0.03).word == "shown"
    last = judged([0.1, -0.1] * (LOOKS[-1] // 2), 0.03)
    assert (last.word, last.because, last.is_final) == ("undecided", "", True)
    small = [0.029, 0.028, 0.0295, 0.0285, 0.032]  # above 0, and too small to count; the interval reaches above 0.03
    assert not judged(small, 0.03).is_final and judged(small, 0.025).word == "shown"


def test_fresh_seeds_start_from_three_first_models_in_turn() -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + 6)
    assert [CLAIM.trial(0, 1e-4, seed).base for seed in seeds] == [1, 2, 0, 1, 2, 0]
    assert {CLAIM.trial(0, 1e-4, seed).base for seed in TUNING_SEEDS} == {0}
    own = claims.CLAIMS["admission"]
    assert own.bases and {own.trial(0, 1e-4, seed).base for seed in seeds} == {0}
    bases = [seed % 3 for seed in range(FIRST_SEED, FIRST_SEED + 20)]
    by_base = [-0.1 if base == 2 else 0.9 for base in bases]
    assert [str(judged(by_base, 0.03, first_models=n)) for n in (1, 3)] == [
        "*shown*", "*undecided*: first models differ"]  # fmt: skip


def clear_results(
    claim: Claim, early: float, *, at_edge: bool = False, gain: float = 0.2, level: float = 0.4
) -> dict[StudyRun, StudyRunResult]:
    """A claim that is clear after five seeds, with a figure of the mechanism in the second side's first iterations.

    The sides are best at the second rate, or at the smallest one that there can be.
    """
    found: dict[StudyRun, StudyRunResult] = {}
    while missing := claim.next_runs(found):
        for trial in missing:
            rate = float(trial.settings[-1].partition(" = ")[2])
            is_best = rate == claim.rates[1] or at_edge
            own = gain * (trial == claim.trial(0, rate, trial.seed)) + 0.001 * (trial.seed % 3)
            mean = level + own if is_best else 0.3
            mean -= 1e-6 * math.log(rate) * at_edge
            one = result_of(trial, mean)
            figure = {name: dict.fromkeys(range(1, 6), early) | dict.fromkeys(range(6, 21), 9.0) for name in ACTED}
            found[trial] = replace(one, metrics={**one.metrics, claim.metric: {claim.last: mean}, **figure})
    return found


@pytest.mark.parametrize("name", UNDONE)
def test_a_mechanism_that_had_nothing_to_do_decides_nothing(name: str) -> None:
    """The figure is that of the side without it, over the first iterations; later ones may lack what it repairs."""
    claim = claims.CLAIMS[name]
    assert claim.acted and claim.acted[0] in claim.metrics
    bound = claim.acted[1]
    acts, idle = clear_results(claim, bound), clear_results(claim, 0.9 * bound)
    assert claim.judgement(acts).word == "shown" and state(claim, acts).startswith("*shown*: 0.2")
    assert claim.judgement(idle).is_final and state(claim, idle) == "*undecided*: it did not act, 5 seeds"
    assert claim.next_runs(idle) == [] and len(claim.differences(idle)) == LOOKS[0]
    assert f"acted: {bound:.2g}, at least {bound:g} of" in claims.beside(claim, acts)
    assert claims.beside(claim, {}) == f"acted: at least {bound:g} of `{claim.acted[0]}`"


def test_a_best_rate_at_an_edge_of_the_largest_grid_decides_no_claim() -> None:
    """Another rate may be better."""
    claim = claims.CLAIMS["dapo-clip-higher"]
    edge, inside = clear_results(claim, 1.0, at_edge=True), clear_results(claim, 1.0)
    assert claim.is_at_edge(edge) and not claim.is_at_edge(inside) and claim.judgement(inside).word == "shown"
    assert claim.best_rate(0, edge) == pytest.approx(claim.rates[0] / 9), "the grid has grown twice"
    assert state(claim, edge) == "*undecided*: a best rate at an edge, 5 seeds" and claim.next_runs(edge) == []


@pytest.mark.parametrize(("first", "word"), [(0.41, "undecided"), (0.39, "shown")])
def test_a_claim_beside_a_side_that_unlearns_is_undecided(first: float, word: str) -> None:
    """Of two sides that both get worse, the one that moves less looks better."""
    claim = claims.CLAIMS["dapo-clip-higher"]
    found = clear_results(claim, 1.0)
    for trial, one in found.items():
        found[trial] = replace(one, metrics={**one.metrics, claim.metric: {0: first, **one.metrics[claim.metric]}})
    assert claim.judgement(found).word == word and claim.next_runs(found) == []
    assert state(claim, found).startswith(
        "*undecided*: without unlearns, 5 seeds" if word == "undecided" else "*shown*"
    )


def test_a_claim_without_room_is_not_absent() -> None:
    claim = claims.CLAIMS["dapo-clip-higher"]
    for level, text in ((0.95, "*undecided*: little room, 5 seeds"), (0.9, "*absent*: 0.000")):
        results = clear_results(claim, 1.0, gain=0.0, level=level)
        assert state(claim, results).startswith(text) and claim.judgement(results).is_final


def test_a_claim_before_its_first_look_is_undecided_with_the_seeds_that_it_needs() -> None:
    claim = claims.CLAIMS["noisy-3e-4"]
    found = {}
    for seed, x in enumerate((0.2, 0.1, 0.0, 0.1), FIRST_SEED):
        found |= {claim.trial(0, 3e-4, seed): result_of(claim.trial(0, 3e-4, seed), 0.5 + x)}
        found |= {claim.trial(1, 3e-4, seed): result_of(claim.trial(1, 3e-4, seed), 0.5)}
    assert state(claim, {}) == "*undecided*: not enough runs"
    assert state(claim, found) == "*undecided*: not enough runs, 4 seeds, 9 to decide"
    tuned = len(NAMES) - 1
    words = f"{tuned} claims: {tuned} undecided; {tuned} have not enough runs, {tuned} of them none."
    assert claim.has_one_rate and claims.counts({}) == claims.counts(found) == f"{words} Beside them 1 at one rate."
    admission = claims.CLAIMS["admission"]
    found = {admission.trial(side, 1e-4, 100): result_of(admission.trial(side, 1e-4, 100), 0.5) for side in (0, 1)}
    found = {trial: replace(x, metrics={admission.metric: {1: 0.5}}) for trial, x in found.items()}
    assert not admission.has_one_rate and f"{tuned - 1} of them none" in claims.counts(found)


def test_a_mixture_is_trained_only_if_its_admission_is_shown() -> None:
    claim = claims.CLAIMS["sparse-mixture"]
    admission = claim.admitted_by
    assert admission is claims.CLAIMS["admission"] and {arm.settings[0] for arm in claim.sides} == {"model = @sparse"}
    assert claim.next_runs({}) == [] and state(claim, {}) == "*undecided*: not enough runs, waits for `admission`"

    def spreads(mixture: float) -> dict[StudyRun, StudyRunResult]:
        pairs = [admission.trial(side, admission.rates[0], seed) for seed in range(FIRST_SEED, FIRST_SEED + LOOKS[0])
                 for side in (0, 1)]  # fmt: skip
        wide = [mixture + 0.001 * (i // 2) if i % 2 == 0 else 0.5 for i in range(len(pairs))]
        values = {trial: dict.fromkeys(range(1, 6), x) for trial, x in zip(pairs, wide, strict=True)}
        return {
            trial: replace(result_of(trial, 0.0), metrics={admission.metric: series})
            for trial, series in values.items()
        }

    assert claim.next_runs(spreads(0.5)) == []
    assert state(claim, spreads(0.5)) == "*not admitted*: `admission` is absent"
    assert {run.seed for run in claim.next_runs(spreads(0.7))} == set(TUNING_SEEDS)
    assert state(claim, spreads(0.7)) == "*undecided*: not enough runs"


def test_runs_are_made_look_by_look_until_one_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    made: list[StudyRun] = []

    def run_trial(trial: StudyRun, *others: object) -> StudyRunResult:
        made.append(trial)
        noise = 0.1 * (-1) ** trial.seed * (trial.seed < FIRST_SEED + LOOKS[0])  # the first look is open
        return result_of(trial, (0.6 if trial.method == "gspo" else 0.5) + noise * (trial.method == "gspo"))

    monkeypatch.setattr(running, "run_trial", run_trial)
    page = tmp_path / claims.PAGE
    page.parent.mkdir(parents=True)
    page.write_text((HOME / claims.PAGE).read_text("utf-8"), encoding="utf-8")
    assert claims.main(["noisy-3e-4", "--minutes", "0"], tmp_path) == 1 and not made
    assert claims.main(["noisy-3e-4"], tmp_path) == 0
    seeds = [trial.seed for trial in made]
    assert seeds == [seed for seed in range(FIRST_SEED, FIRST_SEED + len(seeds) // 2) for _ in (0, 1)]
    assert len(seeds) // 2 == LOOKS[1]
    results = read_results(tmp_path / claims.RESULTS)
    text = state(claims.CLAIMS["noisy-3e-4"], results)
    assert f"noisy-3e-4: {text}" in capsys.readouterr().out and text in page.read_text("utf-8")
    count = len(made)
    assert claims.main(["noisy-3e-4"], tmp_path) == 0 and len(made) == count


def test_a_run_that_fails_leaves_the_claim_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def run_trial(trial: StudyRun, *others: object) -> StudyRunResult:
        raise ValueError("no")

    monkeypatch.setattr(running, "run_trial", run_trial)
    assert not claims.measure(claims.CLAIMS["noisy-3e-4"], tmp_path, math.inf)
    assert "failed: ValueError('no')" in capsys.readouterr().out


def test_the_page_has_the_state_of_each_claim() -> None:
    page = (HOME / claims.PAGE).read_text("utf-8")
    assert filled(page, claims.blocks(claims.fresh_results(HOME))) == page, "python -m studies.claims"


def test_the_mixtures_of_today_are_not_admitted() -> None:
    stored = read_results(HOME / pages.RESULTS)
    spreads = [
        mean_spread(Measured(PARTS[name], stored), "grpo", dense_twin.RATES, 1, 5).values
        for name in ("mixture", "twin")
    ]
    differences = [a - b for a, b in zip(*spreads, strict=True)]
    assert len(differences) == 5 and judged(differences, claims.CLAIMS["admission"].least).word != "shown"
    assert judged([x + 1 for x in differences], claims.CLAIMS["admission"].least).word == "shown"


def test_the_candidate_uses_as_many_weights_per_token_as_its_twin() -> None:
    sparse, dense = mixtures.SPARSE, mixtures.SPARSE_TWIN
    assert sparse["num_experts_per_tok"] * sparse["moe_intermediate_size"] == dense["intermediate_size"]
    assert sparse["num_hidden_layers"] == dense["num_hidden_layers"]


def test_the_noisy_engine_samples_the_same_tokens_with_other_log_probs() -> None:
    directory = find_model("calculator")
    model, tokenizer = read_model(directory), read_tokenizer(directory)
    context = tuple(tokenizer.encode("7*5+8-9+3="))
    requests = [GenerationRequest(context=context, limit=24, draw_id=1, stream=(i,)) for i in range(40)]

    async def sampled(engine: NativeEngine) -> list:
        return list(await asyncio.gather(*map(engine.sample, requests)))

    exact = asyncio.run(sampled(NativeEngine(model, tokenizer, seed=3)))
    setting = Noisy(sd=3.0, fraction=0.1)
    noisy, again, other = (
        asyncio.run(sampled(setting.build(model, tokenizer, seed=seed, experts=None))) for seed in (3, 3, 4)
    )
    assert isinstance(setting.build(model, tokenizer, seed=3, experts=None), NoisyEngine)
    assert [x.tokens for x in noisy] == [x.tokens for x in exact] and noisy == again != other
    off = torch.tensor([a - b for x, y in zip(noisy, exact, strict=True) for a, b in zip(x.logp, y.logp, strict=True)])
    assert (off != 0).double().mean() == pytest.approx(0.1, abs=0.04)
    assert off[off != 0].std() == pytest.approx(3.0, abs=0.8)


def test_notes_are_the_kl_of_the_engine_and_the_kurtosis_of_the_ratios() -> None:
    batch = pack([rollout_of([0, 1], lengths=[2, 3])])
    old = torch.tensor([-1.0, -2.0, -3.0, -1.0, -2.0], dtype=torch.float64)
    off = torch.tensor([0.1, 0.2, -0.1, 0.3, 0.0], dtype=torch.float64)
    step = batch.having(logp_old=old, logp_engine=old + off, logp=old + off)
    assert EngineKL()(batch).all() and KL.endswith("EngineKL/kl")
    assert EngineKL().notes(step) == pytest.approx({"kl": 0.1})
    away = off - off.mean()
    assert Spreads().notes(step)["kurtosis"] == pytest.approx(float((away**4).mean() / (away**2).mean() ** 2 - 3))
    assert Spreads().notes(step.having(logp=old))["kurtosis"] == 0.0
