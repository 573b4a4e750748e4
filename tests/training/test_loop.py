"""Tests of the training loop: its order, its counts, engine against learner, and its options."""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from groupwise.core import Diverged, LogprobMismatch
from groupwise.data import (
    LARGEST_GAP,
    WRITTEN,
    Batch,
    Draw,
    GenerationRequest,
    Ids,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Sampler,
    Verdict,
    pack,
)
from groupwise.engines import NativeEngine
from groupwise.learner import StepPlan
from groupwise.methods import LinearRamp, Method
from groupwise.models import Decoder
from groupwise.objective import KL, complete
from groupwise.rewards import mixed_outcomes
from groupwise.rollout import Independent
from groupwise.runs.checkpoints import newest_checkpoint
from groupwise.runs.json_lines import read_lines
from groupwise.runs.run_layout import RunLayout
from groupwise.training.loop import OLD_LOGP, due, needed_measures, plan
from tests.rollout.fakes import FakeEngine
from tests.toys.echo import LEARNERS, SHAPE, ToyRun, small, tokenizer

# A scripted engine


async def two_letters(request: GenerationRequest) -> Ids:
    """The prompt's letter and the sample's number, with a delay, so that answers arrive in another order."""
    await asyncio.sleep(0.002 * ((7 * request.draw_id + 3 * request.stream[0]) % 4))
    return request.context[-1], 2 + request.stream[0]


async def three_letters(request: GenerationRequest) -> Ids:
    """One token more than the budget of two."""
    return (*await two_letters(request), 2)


async def every_second(prompt: Prompt, sample: Sample) -> Verdict:
    """Right for every second sample of a draw."""
    return Verdict(Outcome.correct if sample.stream[0] % 2 else Outcome.wrong)


def scripted(directory: Path, **changes: Any) -> ToyRun:
    """Two prompts with four samples each, three iterations."""
    fields: dict[str, Any] = {
        "method": small("grpo", group_size=4),
        "verifier": every_second,
        "prompts": 2,
        "iterations": 3,
    }
    return ToyRun(
        directory=directory, max_logprob_diff=math.inf, **{"engine": FakeEngine(two_letters), **fields, **changes}
    )


def test_a_run_with_a_scripted_engine(tmp_path: Path) -> None:
    environment = scripted(tmp_path)
    lines = environment.go()
    assert [(line["iteration"], line["step"]) for line in lines] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert all(line["reward"] == 0.5 and line["num_tokens"] == 16 for line in lines[1:])
    samples = environment.samples(2)
    assert [(s["draw"], s["advantage"] > 0) for s in samples] == [(d, i % 2 == 1) for d in (2, 3) for i in range(4)]
    assert [s["text"] for s in samples[:4]] == [samples[0]["prompt"] + x for x in "abcd"]


def test_the_order_of_an_iteration(tmp_path: Path) -> None:
    """Load weights and evaluate; then sample, load weights and evaluate in each iteration."""
    environment = scripted(tmp_path, iterations=2)
    engine = environment.engine
    assert isinstance(engine, FakeEngine)

    async def evaluate() -> dict[str, float]:
        engine.calls.append("evaluate")
        return {"eval/accuracy": 0.5}

    lines = environment.go(evaluate)
    assert ["eval/accuracy" in line for line in lines] == [True, False, True]  # at the start and at the end, always
    calls = ["sample" if isinstance(call, GenerationRequest) else call for call in engine.calls]
    assert calls == [0, "evaluate", *["sample"] * 8, 1, *["sample"] * 8, 2, "evaluate"]  # a number: a loaded version
    keys = {(request.draw_id, request.stream) for request in engine.requests}
    assert sorted({draw for draw, _ in keys}) == [0, 1, 2, 3] and len(keys) == 16


def test_due() -> None:
    assert [i for i in range(1, 8) if due(3, i, 7)] == [3, 6, 7]
    assert [i for i in range(1, 8) if due(0, i, 7)] == [7]


@dataclass(frozen=True)
class Only:
    """A strategy: only the draws in `mixed` have a mixed group, all others are wrong."""

    mixed: frozenset[int]

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await Independent()(draw, sampler)
        wrong = Verdict(Outcome.wrong)
        return (
            rollout
            if draw.id in self.mixed
            else replace(rollout, samples=tuple(s.with_verdict(wrong) for s in rollout.samples))
        )


def dynamic(*mixed: int, max_refills: int) -> Method:
    return small("grpo", group_size=4, filter=mixed_outcomes, max_refills=max_refills, strategy=Only(frozenset(mixed)))


@pytest.mark.t(28)
def test_refilled_and_dropped_groups_are_all_counted(tmp_path: Path) -> None:
    """Draws 0 and 2 have no mixed group: each is refilled and counted."""
    environment = scripted(tmp_path, iterations=1, method=dynamic(1, 3, max_refills=5))
    line = environment.go()[1]
    values = {name.removeprefix("rollout/"): x for name, x in line.items() if name.startswith("rollout/")}
    assert values == {
        "rounds": 3, "draws": 4, "selected": 2, "dropped": 2, "dropped/mixed_outcomes": 2, "missing": 0,
        "unverifiable": 0, "answers": 16, "other_prompt": 0, "written": 0, "fewest_answers": 4, "most_answers": 4,
    }  # fmt: skip
    samples = environment.samples(1)
    assert [s["draw"] for s in samples] == [d for d in (0, 1, 2, 3) for _ in range(4)]  # in the order of draws
    assert {s["draw"]: (s["selected"], s["dropped"], s["advantage"] is None) for s in samples} == {
        0: (False, "mixed_outcomes", True), 1: (True, "", False), 2: (False, "mixed_outcomes", True),
        3: (True, "", False),
    }  # fmt: skip
    assert line["num_tokens"] == 2 * 4 * 2  # only the selected are trained


@pytest.mark.t(29)
def test_selected_groups_are_trained_after_the_last_refill_round(tmp_path: Path) -> None:
    environment = scripted(tmp_path, prompts=4, method=dynamic(2, 8, max_refills=1), iterations=2)
    lines = environment.go()
    (warning,) = environment.warnings  # once; later ones are counted
    assert warning.startswith("iteration 1 trains on 1 prompt: 3 missing after 2 rounds")
    for line in lines[1:]:
        assert line["rollout/missing"] == 3
        assert (line["rollout/selected"], line["rollout/rounds"], line["step"]) == (1, 2, line["iteration"])
        assert line["rollout/draws"] == 4 + 3 == line["rollout/selected"] + line["rollout/dropped"]


@pytest.mark.t(38)
def test_a_loss_of_zero_by_construction_is_marked(tmp_path: Path) -> None:
    """One step at the sampling policy: the centred advantages cancel, the gradient does not."""
    one = scripted(tmp_path / "one", method=small("gspo", group_size=4)).go()
    assert all(line["loss_zero_by_construction"] for line in one[1:])
    assert all(abs(line["loss"]) < 1e-6 and line["grad_norm"] > 1e-3 for line in one[1:])
    two = scripted(tmp_path / "two", method=small("gspo", group_size=4, minibatches=2)).go()
    assert not any(line["loss_zero_by_construction"] for line in two[1:])
    penalised = small("grpo", group_size=4)
    penalised = replace(penalised, objective=replace(penalised.objective, penalties=(KL(0.5),)))
    values = [line["loss_zero_by_construction"] for line in scripted(tmp_path / "kl", method=penalised).go()[1:]]
    assert values == [True, False, False]  # once the policy has left its reference, the loss is the penalty


# Engine against learner


@pytest.mark.t(20)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_engine_and_learner_have_equal_log_probs(
    temperature: float, dtype: torch.dtype, bound: float, tmp_path: Path
) -> None:
    environment = ToyRun(
        small("grpo"), tmp_path, prompts=4, temperature=temperature, max_tokens=9, dtype=dtype, spread=0.5, letters=15
    )
    assert isinstance(environment.engine, NativeEngine)
    take = environment.buffer.take(6, 8, Independent(), environment.method.filter, 0)
    batch = pack(asyncio.run(take).selected)
    plans = plan(environment.recipe, replace(environment.method, minibatches=4), batch, 0, 0)
    read = environment.learner.compute_measures(batch, plans, frozenset({OLD_LOGP}))
    assert read.logp_old is not None and read.logp_old.dtype == dtype and read.tokens > 100
    assert float((read.logp_old.double() - batch.logp_engine).abs().max()) <= bound
    assert float(batch.logp_engine.std()) > 0.5  # the log-probs differ between tokens
    sampling = replace(environment.recipe.sampling, temperature=1.0)
    if temperature != 1.0:
        environment.learner.temperature = sampling.temperature
        other = environment.learner.compute_measures(batch, plans, frozenset({OLD_LOGP})).logp_old
        assert other is not None and float((other.double() - batch.logp_engine).abs().max()) > 0.1


class StaleEngine(NativeEngine):
    """An engine with separate weights that ignores updates of the weights whose names contain `drops`."""

    def __init__(self, drops: str, seed: int) -> None:
        super().__init__(Decoder.new(SHAPE, 5, spread=0.3), tokenizer(), seed=seed)
        self.drops = drops

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        own = self._decoder.state_dict()
        mixed = {name: own[name] if version and self.drops in name else x.clone() for name, x in weights.items()}
        await super().load(version, mixed)


@pytest.mark.t(21)
@pytest.mark.parametrize("drops", ["", "layers.0.self_attn", "layers.0.mlp"])
def test_a_weight_update_that_misses_the_engine_is_detected_within_one_step(drops: str, tmp_path: Path) -> None:
    environment = ToyRun(small("grpo"), tmp_path, iterations=4, lr=0.01, max_tokens=4, engine=StaleEngine(drops, 0))
    with pytest.raises(LogprobMismatch, match="differ by") as error:
        environment.go()
    assert error.value.code == 5
    assert environment.learner.steps_taken == 2  # the first step samples from the right weights, the second does not
    sound = ToyRun(
        small("grpo"), tmp_path / "sound", iterations=4, lr=0.01, max_tokens=4, engine=StaleEngine("none", 0)
    )
    assert len(sound.go()) == 5


@pytest.mark.t(21)
@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_temperature_one_percent_off_is_detected_at_once(factor: float, tmp_path: Path) -> None:
    environment = ToyRun(small("grpo"), tmp_path, iterations=4, max_tokens=4)
    setting = environment.buffer.rollout_setting
    environment.buffer.rollout_setting = replace(setting, sampling=replace(setting.sampling, temperature=factor))
    with pytest.raises(LogprobMismatch):
        environment.go()
    assert environment.learner.steps_taken == 1


@pytest.mark.t(22)
def test_at_a_learning_rate_of_zero_weights_and_gap_stay(tmp_path: Path) -> None:
    environment = ToyRun(small("grpo"), tmp_path, iterations=8, lr=0.0, max_tokens=4)
    before = environment.weights()
    lines = environment.go()
    assert all(torch.equal(x, before[name]) for name, x in environment.weights().items())
    gaps = [line["sampling/sampling_logp_difference/max"] for line in lines[1:]]
    assert max(gaps) < 2e-6 and max(gaps[4:]) <= 2 * max(gaps[:4])
    assert all(line["grad_norm"] > 0 and line["kl"] == 0 and line["entropy"] > 1 for line in lines[1:])


# Equal runs, and all options


def traces(environment: ToyRun) -> tuple[bytes, list[bytes], dict[str, list[float]]]:
    environment.go()
    home = environment.directory
    files = [p.read_bytes() for p in sorted((home / "samples").iterdir())]
    weights = {name: x.double().flatten().tolist() for name, x in environment.weights().items()}
    return (home / "metrics.jsonl").read_bytes(), files, weights


def test_equal_seeds_give_equal_runs_and_others_differ(tmp_path: Path) -> None:
    method = small("grpo", minibatches=2, epochs=2)
    a, b, c = (
        traces(ToyRun(method, tmp_path / name, iterations=3, seed=seed))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert a == b
    assert a[0] != c[0] and a[1] != c[1] and a[2] != c[2]
    assert all(json.loads(line)["entropy"] > 0 for line in a[0].splitlines()[1:])


@pytest.mark.parametrize("name", LEARNERS)
def test_a_method_runs_in_minibatches_and_epochs(name: str, tmp_path: Path) -> None:
    """Two iterations of four steps: two minibatches in two epochs."""
    method = small(name, minibatches=2, epochs=2)
    environment = ToyRun(method, tmp_path, prompts=4 if method.group_size > 1 else 32, lr=0.01, max_tokens=8, save=1)
    before = environment.weights()
    lines = environment.go()
    assert [line["iteration"] for line in lines] == [0, 1, 2] and 2 * sum(
        math.ceil(line["rollout/selected"] / (environment.prompts // 2)) for line in lines[1:]
    ) == lines[-1]["step"]
    for line in lines[1:]:
        assert all(math.isfinite(line[x]) for x in ("loss", "grad_norm", "entropy", "reward", "ratio/mean"))
        assert line["sampling/sampling_logp_difference/max"] < 1e-5 and line["steps_skipped"] == 0
        assert line["learning_rate"] == 0.01 and not line["loss_zero_by_construction"]
        assert line["ratio/max"] > 1 > line["ratio/min"]  # the policy has moved in later steps
    assert ("kl" in lines[-1]) == bool(environment.method.models)
    assert all(not torch.equal(x, before[n]) for n, x in environment.weights().items())  # every tensor is trained
    newest = newest_checkpoint(RunLayout(environment.directory), strict=True)
    assert newest and newest.iteration == 2
    reference_weights = {n.split(".")[1] for n in newest.tensors() if n.startswith("models.")}
    assert reference_weights == {n for n, _ in environment.method.models}


@pytest.mark.parametrize("shuffle", ["prompts", "samples"])
def test_minibatches_do_not_change_the_samples_of_the_first_iteration(shuffle: Any, tmp_path: Path) -> None:
    """The samples of the first iteration do not depend on its steps."""
    plain = ToyRun(small("gspo"), tmp_path / "plain", iterations=1)
    cut = ToyRun(small("gspo", minibatches=4, shuffle=shuffle), tmp_path / "cut", iterations=1)
    one, four = plain.go()[1], cut.go()[1]
    assert (one["step"], four["step"]) == (1, 4)
    texts = [[(s["text"], s["outcome"], s["advantage"]) for s in w.samples(1)] for w in (plain, cut)]
    assert texts[0] == texts[1]
    assert one["ratio/max"] == 1 == one["ratio/min"] and four["ratio/max"] > 1


@pytest.mark.parametrize("shuffle", ["prompts", "samples"])
def test_every_epoch_has_all_samples_in_its_own_order(shuffle: Any, tmp_path: Path) -> None:
    environment = scripted(tmp_path, prompts=8, letters=15)
    batch = pack(asyncio.run(environment.buffer.take(8, 4, Independent(), environment.method.filter, 0)).selected)
    method = replace(environment.method, minibatches=4, shuffle=shuffle)
    epochs = ((0, 0), (0, 1), (1, 0))  # iteration and epoch
    dealt = {at: tuple(step.samples for step in plan(environment.recipe, method, batch, *at)) for at in epochs}
    assert len(set(dealt.values())) == 3
    assert all(sorted(i for step in steps for i in step) == list(range(32)) for steps in dealt.values())
    assert all([len(step) for step in steps] == [8] * 4 for steps in dealt.values())
    other = replace(environment.recipe, seed=1)
    assert tuple(step.samples for step in plan(other, method, batch, 0, 0)) != dealt[0, 0]


def test_a_mask_of_all_tokens_skips_the_step(tmp_path: Path) -> None:
    """Every answer is truncated, and truncated ones are masked: no step is taken, and nothing is divided by 0."""
    method = small("grpo", group_size=4, mask=(complete,))
    environment = scripted(tmp_path, method=method, engine=FakeEngine(three_letters))
    before = environment.weights()
    with pytest.raises(Diverged, match="no token is trained") as error:
        environment.go()
    assert "raise sampling.max_tokens" in error.value.fix and len(environment.warnings) == 3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line.get("steps_skipped")) for line in lines] == [(0, None), (0, 1), (0, 1)]
    assert all(torch.equal(x, before[name]) for name, x in environment.weights().items())


def test_old_log_probs_from_the_engine(tmp_path: Path) -> None:
    """The engine's log-probs are the old ones. The gap becomes part of the ratio, and no measure is needed."""
    method = small("gspo", minibatches=2, old_logprobs="engine")
    assert needed_measures(method, [(StepPlan(()), StepPlan(()))]) == frozenset()
    assert needed_measures(replace(method, old_logprobs="learner"), [(StepPlan(()), StepPlan(()))]) == {OLD_LOGP}
    assert needed_measures(replace(method, old_logprobs="learner"), [(StepPlan(()),)]) == frozenset()
    environment = ToyRun(method, tmp_path, iterations=2)
    lines = environment.go()
    assert all(0 < line["sampling/sampling_logp_difference/max"] < 1e-4 for line in lines[1:])  # of the first step
    again = ToyRun(replace(method, old_logprobs="learner"), tmp_path / "recomputed", iterations=2).go()
    for a, b in zip(lines[1:], again[1:]):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-4) and a["grad_norm"] == pytest.approx(b["grad_norm"], 1e-3)


def test_a_gap_is_detected_with_old_log_probs_from_the_engine(tmp_path: Path) -> None:
    environment = scripted(tmp_path, method=small("grpo", group_size=4, old_logprobs="engine"))
    environment.guards.max_logprob_diff = 1e-3
    with pytest.raises(LogprobMismatch):
        environment.go()


def test_a_run_without_the_gap_metric_fails(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("groupwise.objective.batch_metrics.describe_gap", lambda logp, step: {})
    monkeypatch.setattr("groupwise.training.iteration_records.describe_gap", lambda logp, step: {})
    with pytest.raises(KeyError, match=LARGEST_GAP):
        ToyRun(small("gspo", minibatches=2), tmp_path, iterations=1).go()


async def with_written_token(draw: Draw, sampler: Sampler) -> Rollout:
    """A strategy that appends a written token to each answer."""
    answers = [s.insert((3,), WRITTEN) for s in await sampler.sample(draw.prompt.token_ids, draw.n)]
    return Rollout(draw, tuple(await sampler.verify(answers)))


def test_tokens_after_the_decoded_ones_end_at_the_end_of_the_text(tmp_path: Path) -> None:
    """The last of each answer's three tokens is not decoded. Every token has an end in the shard."""
    ToyRun(small("grpo", group_size=4, strategy=with_written_token), tmp_path, iterations=1).go()
    shard = load_file(tmp_path / "samples" / "000001.safetensors")
    texts = [line["text"] for line in read_lines(tmp_path / "samples" / "000001.jsonl")]
    ends = shard["ends"].split(shard["lengths"].tolist())
    assert [e[-2:].tolist() for e in ends] == [[len(text)] * 2 for text in texts]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_written_tokens_with_old_log_probs_from_the_engine(minibatches: int, tmp_path: Path) -> None:
    """Written tokens have no log-prob of the engine. The learner's is used, and nothing becomes NaN."""
    method = small("grpo", group_size=4, old_logprobs="engine", strategy=with_written_token, minibatches=minibatches)
    lines = ToyRun(method, tmp_path).go()
    assert all(line["steps_skipped"] == 0 and math.isfinite(line["loss"]) for line in lines[1:])


@dataclass(frozen=True)
class MeanReward:
    """A memory: the mean reward of the last iteration with a reward."""

    def init(self) -> float:
        return -1.0

    def __call__(self, state: float, batch: Batch, stats: Mapping[str, float]) -> float:
        return float(batch.reward.mean())


def test_an_iteration_without_a_step_does_not_change_the_memory(tmp_path: Path) -> None:
    async def wrong(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.wrong)

    method = small("grpo", group_size=4, filter=mixed_outcomes, states=(("mean", MeanReward()),))
    environment = scripted(tmp_path, method=method, verifier=wrong, iterations=2)
    environment.go()
    assert environment.learner.method_states == {"mean": -1.0}


async def leave_out_second(draw: Draw, sampler: Sampler) -> Rollout:
    """A strategy that does not select the second answer."""
    answers = await sampler.sample(draw.prompt.token_ids, draw.n)
    return Rollout(draw, tuple(await sampler.verify(answers)), selected=(True, False, True, True))


def test_a_strategy_may_select_answers(tmp_path: Path) -> None:
    environment = ToyRun(small("grpo", group_size=4, strategy=leave_out_second), tmp_path, iterations=1)
    line = environment.go()[1]
    assert [s["selected"] for s in environment.samples(1)] == [True, False, True, True] * 4
    assert line["rollout/selected"] == 4
    assert line["num_tokens"] == sum(s["length"] for s in environment.samples(1) if s["selected"])


def test_schedules_set_the_constants_of_the_method(tmp_path: Path) -> None:
    """A closing clip range: the first iteration clips nothing, the last clips every ratio other than 1."""
    ramp = (("objective.surrogate.low", LinearRamp(9.0, 0.0, 2)), ("objective.surrogate.high", LinearRamp(9.0, 0.0, 2)))
    method = small("grpo", epochs=3, schedules=ramp)
    values = [line["clip_ratio/region_mean"] for line in ToyRun(method, tmp_path, iterations=3, lr=0.02).go()[1:]]
    assert values[0] == 0 and values[2] > 0.05


def test_the_weights_of_a_reference_do_not_change(tmp_path: Path) -> None:
    environment = ToyRun(small("rloo"), tmp_path, iterations=3)
    before = environment.weights()
    lines = environment.go()
    reference_weights = environment.learner.models["reference"].state_dict()
    assert all(torch.equal(x, reference_weights[name]) for name, x in before.items())
    assert lines[1]["kl/k1"] == 0 and lines[3]["kl"] > 0


def test_answers_without_a_verdict_are_reported_once_with_their_cause(tmp_path: Path) -> None:
    async def failing(prompt: Prompt, sample: Sample) -> Verdict:
        if sample.stream[0] % 2:
            return Verdict(Outcome.unverifiable, cause="RuntimeError: no (reward.py:3)")
        return Verdict(Outcome.correct if sample.stream[0] % 4 else Outcome.wrong)

    run = ToyRun(small("grpo"), tmp_path, verifier=failing)
    run.go()
    (text,) = [text for text in run.warnings if "could not be graded" in text]
    assert text.startswith("iteration 1: 16 of 32 answers") and text.endswith("RuntimeError: no (reward.py:3)")
