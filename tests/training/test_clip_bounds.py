"""Clip bounds against the spread of the ratios: the note of `check`, and the warning of a run by its own ratios."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from groupwise.checks.check_clip_bounds import MANY, SPREADS, TOKEN_SPREAD, discarded, narrow_bounds, normal_tail
from groupwise.config.packaged import find_recipe
from groupwise.config.recipe_toml import read_recipe
from groupwise.data import Batch, Outcome, Prompt, Sample, Verdict, pack, rollout_of
from groupwise.lifecycle.alerts import AlertDetector
from groupwise.methods import LinearRamp, Method, cispo, dapo, gspo
from groupwise.objective import Clip, Objective, describe_step, sequence_mean, sequence_product, sequence_ratio
from tests.faults.small_runs import EVERY, begun, lines, ready, run_from
from tests.rollout.fakes import judged_by


def notes(*fields: tuple[str, str]) -> list[str]:
    return narrow_bounds(read_recipe(find_recipe("calculator"), [("method", "gspo"), *fields]))


def step_of(sd: float, shift: float = 0.0) -> Batch:
    """A step whose tokens' log-ratios are normal, in 400 answers of 16 tokens."""
    generator = torch.Generator().manual_seed(0)
    batch = pack([rollout_of([float(i % 2) for i in range(400)], lengths=[16] * 400)])
    old = torch.full((batch.tokens,), -1.0, dtype=torch.float64)
    noise = shift + sd * torch.randn(batch.tokens, dtype=torch.float64, generator=generator)
    advantage = batch.sequences.spread(2.0 * batch.outcome.double() - 1.0)
    return batch.having(logp_old=old, logp=old + noise, advantage=advantage, logp_engine=old)


def line_of(sd: float, shift: float = 0.0) -> dict[str, float]:
    """The metrics of such a step with GSPO, in iteration 1."""
    return {"iteration": 1, **describe_step(step_of(sd, shift), gspo().objective)}


def test_the_note_follows_from_the_length_of_answers() -> None:
    (note,) = notes(("sampling.max_tokens", "64"))
    spread = TOKEN_SPREAD / 64**0.5
    assert f"may discard {normal_tail(3e-4, 4e-4, spread):.0%} of the tokens" in note and "44%" in note
    assert f"low = high = {SPREADS * spread:.2g} fits" in note and "low = high = 0.005" in note
    assert notes(("sampling.max_tokens", "8192")) == []
    fits = (("method.objective.surrogate.low", "0.005"), ("method.objective.surrogate.high", "0.005"))
    assert notes(("sampling.max_tokens", "64"), *fits) == []
    assert notes(("method.minibatches", "1")) == []  # every ratio is 1
    assert len(notes(("method.minibatches", "1"), ("method.old_logprobs", "engine"))) == 1


def test_other_ratios_and_surrogates_have_no_note() -> None:
    recipe = read_recipe(find_recipe("calculator"))
    assert recipe.method.objective.surrogate == Clip(0.05, 0.05, sequence_ratio)
    assert narrow_bounds(recipe) == []
    product = Objective(surrogate=Clip(1e-4, 1e-4, sequence_product), aggregate=sequence_mean)
    for method in (dapo(), cispo(), Method(objective=product, epochs=2)):
        assert narrow_bounds(replace(recipe, method=method)) == []
    (token,) = narrow_bounds(replace(recipe, method=Method(objective=Objective(surrogate=Clip(3e-4, 3e-4)), epochs=2)))
    assert "it spreads by 0.02" in token and "low = high = 0.04" in token


def test_a_run_is_warned_with_bounds_that_fit_its_ratios() -> None:
    line = line_of(sd=0.05)
    alerts = AlertDetector(1.0, method=gspo())
    (text,) = alerts(line)
    assert text.startswith("warning: iteration 1: the clip bounds 0.0003 and 0.0004 discard ")
    assert line["clip_ratio/region_mean"] == pytest.approx(0.49, abs=0.05)
    low, high = (float(text.partition(f"{side} = ")[2].split()[0]) for side in ("low", "high"))
    assert (low, high) == pytest.approx((2.33 * 0.05 / 4,) * 2, rel=0.2)
    assert alerts(line) == []
    fitting = replace(gspo().objective, surrogate=Clip(low, high, sequence_ratio))
    assert describe_step(step_of(sd=0.05), fitting)["clip_ratio/region_mean"] < 0.03
    assert AlertDetector(1.0)(line) == [] == AlertDetector(1.0, method=cispo())(line)
    assert AlertDetector(1.0, method=gspo())(line | {"clip_ratio/region_mean": MANY}) == []


def test_no_bounds_fit_ratios_that_the_engine_shifts() -> None:
    line = line_of(sd=0.01, shift=-0.02)
    engine = replace(gspo(), old_logprobs="engine")
    text = discarded(engine, line)
    assert text is not None and "the median ratio is shifted by -0.02, so no bounds around 1 fit" in text
    assert text.endswith("take old log-probs of the learner: method.old_logprobs learner")
    assert "fit: they hold 98%" in (discarded(gspo(), line) or "")  # recomputed old log-probs: no gap of the engine
    near = discarded(engine, line_of(sd=0.05))
    assert near is not None and "fit: they hold 98%" in near


def test_bounds_with_a_schedule_give_no_warning() -> None:
    scheduled = replace(gspo(), schedules=(("objective.surrogate.low", LinearRamp(3e-4, 4e-4)),))
    line = line_of(sd=0.05)
    assert discarded(scheduled, line) is None and discarded(gspo(), line) is not None


def test_a_run_prints_the_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("groupwise.checks.check_clip_bounds.MANY", 0.01)  # few groups of these answers have a signal

    async def odd(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct if sum(sample.tokens) % 2 else Outcome.wrong)

    recipe = replace(EVERY, method=gspo(group_size=4, low=0.0, high=0.0, minibatches=2), iterations=2)
    objects = ready(recipe)
    setting = replace(objects.rollout_setting, verifier=judged_by(odd))
    run = begun(tmp_path / "run", recipe)
    run_from(run, replace(objects, rollout_setting=setting))
    assert max(line.get("clip_ratio/region_mean", 0.0) for line in lines(run)) > 0.01
    assert capsys.readouterr().err.count("the clip bounds 0 and 0 discard") == 1
