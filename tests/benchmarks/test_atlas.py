"""The atlas: the page equals the stored results, finished runs are skipped, and a changed part makes a row stale."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.atlas import __main__ as command
from benchmarks.atlas import running
from benchmarks.atlas.page import page
from benchmarks.atlas.studies import ABLATIONS, Study, needed_trials, seeds_of, studies, unread_trials

from groupwise.certificates import code_hash as hashing
from groupwise.certificates import studies as stored
from groupwise.certificates.code_hash import code_hash
from groupwise.certificates.studies import (
    RESULTS,
    SEEDS,
    EffectComparison,
    StudyRun,
    StudyRunResult,
    compare,
    trials_of,
)
from groupwise.methods import ExpectedEffect, grpo, gspo, murphy, published, reference_of

HOME = Path(__file__).parents[2]
EFFECT = ExpectedEffect(
    metric="entropy", direction="up", task="calculator", parent="grpo", min_difference=0.1, runs_matched_by="steps"
)
ONE = ("prompts = 1", "iterations = 1", "method.group_size = 2", "method.minibatches = 1", "evaluate.problems = 1",
       "sampling.max_tokens = 4")  # fmt: skip


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


def results_of(differences: list[float], effect: ExpectedEffect = EFFECT) -> dict[StudyRun, StudyRunResult]:
    """Results of gspo that differ from its parent's by the given numbers, seed by seed."""
    found = {}
    for seed, difference in enumerate(differences, 1):
        own, parent = trials_of("gspo", effect, seed)
        found[own] = result(own, {effect.metric: dict.fromkeys((1, 2, 3, 4), 1.0 + difference)})
        found[parent] = result(parent, {effect.metric: dict.fromkeys((1, 2, 3, 4), 1.0)})
    return found


# Stored runs


def test_every_stored_run_belongs_to_a_study() -> None:
    """A run that no study reads is counted in the costs and shown nowhere. `make atlas` names it."""
    assert unread_trials(stored.read_results(HOME / RESULTS)) == []
    own = StudyRun("gspo", "calculator", 1, ("prompts = 4",))
    assert unread_trials({own: result(own, {})}) == [own]


# Comparison


def test_a_metric_of_training_is_the_mean_of_the_second_half_and_a_held_out_one_is_the_last() -> None:
    one = result(
        StudyRun("gspo", "calculator", 1), {"entropy": {1: 9.0, 2: 7.0, 3: 2.0, 4: 4.0}, "eval/x": {0: 9.0, 2: 0.5}}
    )
    assert one.value("entropy", 4) == 3.0 and one.value("entropy", 2) == 7.0
    assert one.value("eval/x", 4) == one.value("eval/x", 3) == 0.5 and math.isnan(one.value("eval/x", 1))
    assert math.isnan(one.value("reward", 4))


def test_at_equal_tokens_the_longer_run_is_read_up_to_the_others_total() -> None:
    effect = replace(EFFECT, runs_matched_by="tokens")
    own, parent = trials_of("gspo", effect, 1)
    long = result(own, {"entropy": {1: 1.0, 2: 2.0, 3: 8.0, 4: 9.0}}, tokens=(20, 20, 20, 20))
    short = result(parent, {"entropy": {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}}, tokens=(10, 10, 10, 19))
    assert stored.values_of(effect, long, short) == (2.0, 0.5)
    assert stored.values_of(EFFECT, long, short) == (8.5, 0.5)
    held_out = trials_of("gspo", replace(effect, metric="eval/accuracy"), 1)
    assert all(trial.recipe().evaluate.every == 5 for trial in held_out) and own.recipe().evaluate.every == 0


@pytest.mark.parametrize(
    ("differences", "verdict", "is_open"),
    [
        ([0.3, 0.31, 0.29], "shown", False),
        ([-0.3, -0.31, -0.29], "opposite", False),
        ([0.05, 0.05, 0.05], "not shown", False),
        ([0.0, 0.1, 0.5], "not shown", True),
        ([0.0, 0.0, 0.0], "not shown", False),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_and_a_mean_that_counts(differences, verdict, is_open) -> None:
    comparison = compare("gspo", EFFECT, results_of(differences))
    assert comparison is not None and (comparison.verdict, comparison.is_open) == (verdict, is_open)
    down = EffectComparison(
        replace(EFFECT, direction="down"), tuple(-x for x in differences), (0.0,) * len(differences)
    )
    assert down.verdict == verdict and str(down).startswith(f"{verdict}: ")
    assert len(list(seeds_of(Study("gspo", EFFECT), results_of(differences)))) == (6 if is_open else 3)


def test_one_seed_or_a_metric_that_is_absent_is_no_measurement() -> None:
    assert compare("gspo", EFFECT, results_of([0.3])) is None
    assert compare("gspo", replace(EFFECT, metric="reward"), results_of([0.3, 0.3, 0.3])) is None


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
    fresh = results_of([0.3, 0.3, 0.3])
    own, _ = trials_of("gspo", EFFECT, 2)
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


# The page


def test_the_page_is_that_of_the_stored_results() -> None:
    assert (HOME / command.PAGE).read_text() == page(stored.read_results(HOME / RESULTS))


def test_every_method_has_a_row_or_a_reason() -> None:
    text = page({})
    for method in published:
        reference = reference_of(method)
        assert f"| [{method.__name__}](methods.md#{method.__name__}) |" in text
        assert reference.expected_effect is None or reference.expected_effect.metric in text


@pytest.mark.parametrize("study", [*studies(), *ABLATIONS], ids=lambda study: study.method)
def test_both_recipes_of_an_effect_are_valid(study: Study) -> None:
    own, parent = (trial.recipe() for trial in trials_of(study.method, study.effect, 1))
    assert own != parent and own.task == parent.task
    assert own.prompts == parent.prompts or study.effect.runs_matched_by == "tokens", (
        "equal steps have equally many prompts"
    )


def test_a_parents_runs_are_shared() -> None:
    chosen = [Study("gspo", EFFECT), Study("dapo", replace(EFFECT, metric="reward"))]
    needed = needed_trials(chosen, {})
    assert len(needed) == 3 * len(SEEDS)
    assert needed[StudyRun("grpo", "calculator", 1)] == {"entropy", "reward"}


def test_only_fresh_results_are_in_a_certificate(tmp_path: Path) -> None:
    effect = reference_of(gspo).expected_effect
    assert effect is not None
    fresh = results_of([0.3, 0.3, 0.31], effect)
    (tmp_path / RESULTS).parent.mkdir(parents=True)
    stored.write_results(tmp_path / RESULTS, fresh.values())
    measured = stored.measured_effect("gspo", reference_of(gspo), tmp_path)
    assert measured is not None and measured.as_json()["result"] == "shown"
    stored.write_results(tmp_path / RESULTS, [replace(one, code_hash="old") for one in fresh.values()])
    assert stored.measured_effect("gspo", reference_of(gspo), tmp_path) is None
