"""`ForwardProcess` with one time: a written step per sample, at a time that the group shares."""

import asyncio
from dataclasses import replace

import numpy as np

from groupwise.data import WRITTEN, Draw, Finish, Prompt, Rollout, Sample, Sampler, Sampling
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.models import DenoisingSettings, FlowGrpoNoise, decode_action
from groupwise.rollout import ForwardProcess, Independent
from tests.rollout.fakes import sampler_of
from tests.rollout.test_denoiser import FIRST, policy_with

STEPS = 8


def rollout_of(strategy: Independent | ForwardProcess, draw: int) -> Rollout:
    engine = DenoisingEngine(policy_with(DenoisingSettings(noise=FlowGrpoNoise(0.0), steps=STEPS)), seed=0)
    what = Draw(draw, Prompt("p", (FIRST, FIRST + 2)), 3)
    return asyncio.run(strategy(what, sampler_of(engine, what, sampling=Sampling(max_tokens=STEPS))))


def test_a_group_has_one_time_and_each_sample_its_noise() -> None:
    times = set()
    for draw in range(12):
        plain, retraced = (
            rollout_of(strategy, draw) for strategy in (Independent(), ForwardProcess(trained_times="one"))
        )
        tokens = {s.tokens for s in retraced.samples}
        assert len(tokens) == 1 and all(s.origin == (WRITTEN,) for s in retraced.samples)
        times |= tokens
        actions = [decode_action(s.actions[0]) for s in retraced.samples]
        finals = [decode_action(s.actions[-1])[1] for s in plain.samples]
        assert all(np.array_equal(a[1], final) for a, final in zip(actions, finals))
        assert len({a[0].tobytes() for a in actions}) == 3
        assert rollout_of(ForwardProcess(trained_times="one"), draw) == retraced
    assert len(times) > 4 and times <= {(t,) for t in range(STEPS - 1)}


def test_the_text_is_that_of_the_step() -> None:
    class Lettered(Independent):
        async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
            rollout = await Independent()(draw, sampler)
            text, ends = "abcdefgh", tuple(range(1, STEPS + 1))
            return replace(rollout, samples=tuple(s.with_text(text, ends) for s in rollout.samples))

    for draw in range(6):
        for sample in rollout_of(ForwardProcess(Lettered(), trained_times="one"), draw).samples:
            assert (sample.text, sample.token_ends) == ("abcdefgh"[sample.tokens[0]], (1,))


def test_an_unfinished_sample_stays() -> None:
    class Cut(Independent):
        async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
            rollout = await Independent()(draw, sampler)
            return replace(rollout, samples=tuple(s.with_finish(Finish.length) for s in rollout.samples))

    samples: tuple[Sample, ...] = rollout_of(ForwardProcess(Cut(), trained_times="one"), 0).samples
    assert all(len(s.tokens) == STEPS and WRITTEN not in s.origin for s in samples)
