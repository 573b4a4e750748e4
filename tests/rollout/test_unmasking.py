"""The engine of masked policies: bits, keyed draws, log-probs of the learner, a load in between; and the actions."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from groupwise.core import Usage
from groupwise.data import (
    ENVIRONMENT,
    Draw,
    Entropy,
    Finish,
    Generation,
    GenerationRequest,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Sampling,
    Verdict,
    pack,
)
from groupwise.engines.steps.unmasking import UnmaskingEngine
from groupwise.methods import AnswerAndScheduleStrategy
from groupwise.models import (
    CellCommit,
    DrawnKnobs,
    MaskedPolicy,
    MaskedShape,
    UnmaskingSettings,
    decode_masked,
    find_model,
    read_model,
)
from tests.rollout.fakes import generate, sampler_of

SHAPE = MaskedShape(
    vocabulary_size=64 + 1 + 6 + 5, layers=2, cells=6, symbols=3, prompt_vocabulary=5, prompt_length=2, width=16,
    heads=2
)  # fmt: skip
FIRST = SHAPE.first_word
UNMASK = UnmaskingSettings(steps=3, knob_std=0.5)
REQUEST = GenerationRequest(context=(FIRST, FIRST + 3), limit=40, draw_id=5, stream=(2,))


def policy_with(unmask: UnmaskingSettings = UNMASK, seed: int = 0) -> MaskedPolicy:
    torch.manual_seed(seed)
    policy = MaskedPolicy(SHAPE, unmask)
    for parameter in policy.predictor.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    torch.nn.init.normal_(policy.schedule.mean_change, std=0.02)
    return policy


def alone(policy: MaskedPolicy, request: GenerationRequest = REQUEST, seed: int = 0) -> Generation:
    return generate(UnmaskingEngine(policy, seed=seed), [request])[0]


def bits(generation: Generation) -> tuple[object, ...]:
    return generation.tokens, generation.actions, generation.logp[: len(generation.actions)], generation.versions


def others(n: int) -> list[GenerationRequest]:
    return [replace(REQUEST, context=(FIRST + i % 5, FIRST), draw_id=i, stream=(i, 1)) for i in range(n)]


def sample_of(generation: Generation, request: GenerationRequest = REQUEST) -> Sample:
    return Sample(
        context=request.context, stream=request.stream, tokens=generation.tokens, origin=generation.versions,
        logp=generation.logp, actions=generation.actions, finish=generation.finish,
        verdict=Verdict(Outcome.scored, 0.0),
    )  # fmt: skip


def test_a_sample_replays_from_its_actions() -> None:
    """Commits fill masked cells of the canvas before their step; a step masks those of least confidence again."""
    policy, again = policy_with(UnmaskingSettings(steps=4, knob_std=2.0)), 0
    for request in others(30):
        generation = alone(policy, request)
        actions = [decode_masked(action) for action in generation.actions]
        knobs = [action for action in actions if isinstance(action, DrawnKnobs)]
        commits = list(zip(generation.tokens, actions))[: len(actions)]
        assert [k.unmasking_step for k in knobs] == list(range(len(knobs))) and generation.finish is Finish.stop
        canvases = {a.unmasking_step: a.canvas_before for a in actions if isinstance(a, CellCommit)}
        confidence = np.zeros(SHAPE.cells)
        before = np.full(SHAPE.cells, SHAPE.symbols)
        for k in knobs:
            assert k.unmasking_step not in canvases or (canvases[k.unmasking_step] == before).all()
            with torch.no_grad():
                logits = policy.predictor(torch.tensor(before)[None], policy.words([request.context]))[0]
            p = torch.log_softmax(logits, -1).numpy()
            after = before.copy()
            for token, action in commits:
                if isinstance(action, CellCommit) and action.unmasking_step == k.unmasking_step:
                    assert before[action.cell] == SHAPE.symbols
                    assert action.draw_temperature == pytest.approx(math.exp(k.knob_values[0]), rel=1e-6)
                    after[action.cell] = token - SHAPE.first_commit
                    confidence[action.cell] = p[action.cell, after[action.cell]]
            share = 0.0 if k.unmasking_step == 3 else 1 / (1 + math.exp(-k.knob_values[1]))
            later = canvases.get(k.unmasking_step + 1)
            if later is not None:
                assert (later == SHAPE.symbols).sum() == round(share * SHAPE.cells)
                gone = (after != SHAPE.symbols) & (later == SHAPE.symbols)
                kept = later != SHAPE.symbols
                again += int(gone.sum())
                assert not (gone.any() and kept.any()) or confidence[gone].max() <= confidence[kept].min() + 1e-6
                after = later.copy()
            before = after
        assert [t - SHAPE.first_symbol for t in generation.tokens[len(actions) :]] == before.tolist()
        assert len(generation.tokens) <= SHAPE.longest(4)
    assert again > 0


def test_log_probs_are_the_learners() -> None:
    policy = policy_with()
    requests = others(9)
    samples = [sample_of(g, r) for g, r in zip(generate(UnmaskingEngine(policy, seed=0), requests), requests)]
    batch = pack([Rollout(Draw(0, Prompt("p", REQUEST.context), 9), tuple(samples))])
    numbers = policy.measure(batch, [Logp("policy"), Entropy()], {})
    torch.testing.assert_close(numbers[Logp("policy")].double(), batch.logp_engine, atol=2e-6, rtol=0)
    assert numbers[Entropy()].isfinite().all() and batch.tokens == sum(len(s.actions) for s in samples)
    reference = policy.measure(batch, [Logp("reference")], {"reference": policy_with(seed=1)})[Logp("reference")]
    assert not reference.requires_grad and not torch.allclose(reference, numbers[Logp("policy")])
    with pytest.raises(Usage, match="does not compute"):
        policy.measure(batch, [Logp("policy", view="hint")], {})


def test_a_fixed_schedule_has_no_knobs_and_its_shares() -> None:
    generation = alone(policy_with(UnmaskingSettings(steps=3)))
    actions = [decode_masked(action) for action in generation.actions]
    assert [a.unmasking_step for a in actions if isinstance(a, CellCommit)] == [0, 0, 1, 1, 2, 2] and len(actions) == 6


def test_the_schedule_starts_at_its_settings() -> None:
    """Before training, its mean knobs are the temperature and the shares; a request's temperature multiplies them."""
    settings = UnmaskingSettings(steps=3, temperature=0.5)
    policy = policy_with(settings)
    torch.nn.init.zeros_(policy.schedule.mean_change)
    torch.testing.assert_close(policy.schedule.mean[:, 0].exp(), torch.full((3,), 0.5))
    torch.testing.assert_close(policy.schedule.mean[:-1, 1].sigmoid(), torch.tensor(settings.shares[:-1]))
    for temperature in (1.0, 0.4):
        actions = map(
            decode_masked, alone(policy, replace(REQUEST, sampling=Sampling(temperature=temperature))).actions
        )
        commits = [action.draw_temperature for action in actions if isinstance(action, CellCommit)]
        assert commits == pytest.approx([0.5 * temperature] * 6)


def test_temperature_0_is_deterministic_and_trains_nothing() -> None:
    policy = policy_with()
    greedy = [alone(policy, replace(r, context=REQUEST.context, sampling=Sampling(temperature=0))) for r in others(3)]
    assert len({g.tokens for g in greedy}) == 1 and set(greedy[0].versions) == {ENVIRONMENT}
    assert all(map(math.isnan, greedy[0].logp))


def test_a_load_starts_requests_over() -> None:
    old, new = policy_with(), policy_with(seed=1)

    async def loaded() -> Generation:
        engine = UnmaskingEngine(old, seed=0)
        task = asyncio.create_task(engine.sample(REQUEST))
        for _ in range(3):
            await asyncio.sleep(0)
        await engine.load(7, new.state_dict())
        return await task

    generation = asyncio.run(loaded())
    assert set(generation.versions) == {7, ENVIRONMENT}
    assert generation.actions == alone(new).actions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": (FIRST,)}, "a prompt of this masked model has 2 words"),
        ({"context": (0, FIRST)}, "a prompt of this masked model has 2 words"),
        ({"limit": 12}, "has up to 25 tokens, and the request allows 12"),
        ({"context": (*REQUEST.context, 64), "already_generated_count": 1}, "the request continues 1 tokens"),
        ({"steps_per_token": 2}, "the request skips steps"),
        ({"denoising_steps": 5}, "has 3 steps, and no others"),
        ({"sampling": Sampling(top_p=0.5)}, "draws from its whole distribution"),
    ],
)
def test_unfit_requests(change: dict[str, object], message: str) -> None:
    with pytest.raises(Usage, match=message) as raised:
        alone(policy_with(), replace(REQUEST, **change))
    assert raised.value.fix


def test_co_sampled_splits_each_answer() -> None:
    async def graded(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.scored, len(sample.tokens) / 64)

    engine = UnmaskingEngine(policy_with(), seed=0)
    draw = Draw(3, Prompt("p", REQUEST.context), 4)
    sampler = sampler_of(engine, draw, verifier=graded, sampling=Sampling(max_tokens=40))
    rollout = asyncio.run(AnswerAndScheduleStrategy()(draw, sampler))
    answers, schedules = rollout.samples[:4], rollout.samples[4:]
    assert [s.role for s in rollout.samples] == ["answer"] * 4 + ["schedule"] * 4
    for i, (answer, schedule) in enumerate(zip(answers, schedules, strict=True)):
        assert schedule.verdict == answer.verdict and schedule.parent == i
        assert {type(decode_masked(a)) for a in answer.actions} == {CellCommit}
        assert {type(decode_masked(a)) for a in schedule.actions} == {DrawnKnobs} and all(schedule.trained)
        assert sum(answer.trained) == len(answer.actions) == len(answer.tokens) - SHAPE.cells
    batch = pack([rollout], roles=("answer", "schedule"))
    assert len(set(batch.sample_keys)) == 8 and batch.groups.count == 2
    numbers = policy_with().measure(batch, [Logp("policy")], {})[Logp("policy")].double()
    torch.testing.assert_close(numbers, batch.logp_engine, atol=2e-6, rtol=0)


def test_the_packaged_model_reads_and_speaks() -> None:
    policy = read_model(find_model("beads"))
    assert isinstance(policy, MaskedPolicy) and policy.unmask == UnmaskingSettings()
    assert sum(p.numel() for p in policy.parameters()) < 70_000
    with pytest.raises(ValueError, match="not an action"):
        decode_masked(b"flow")
