"""The engine of flow policies: bits, keyed noise, log-probs of the learner, interruptions; and the packaged models."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from groupwise.core import Usage
from groupwise.data import (
    ENVIRONMENT,
    WRITTEN,
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
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.methods import NoiseWindowStrategy
from groupwise.models import (
    CoefficientsPreservingNoise,
    DanceGrpoNoise,
    DenoisingNoise,
    DenoisingSettings,
    FlowGrpoNoise,
    FlowPolicy,
    FlowShape,
    IntegratedNoise,
    decode_action,
    normals,
)
from groupwise.models.flow.flow_policy import log_density
from groupwise.rollout import ForwardProcess, Independent
from tests.processes import PATIENCE
from tests.rollout.fakes import generate, sampler_of

FIRST = 65
SHAPE = FlowShape(
    vocabulary_size=FIRST + 3, layers=1, state_shape=(3, 2, 2), prompt_vocabulary=3, prompt_length=2, width=16
)
REQUEST = GenerationRequest(context=(FIRST, FIRST + 2), limit=8, draw_id=5, stream=(2,))


def policy_with(denoise: DenoisingSettings | None = None, seed: int = 0) -> FlowPolicy:
    torch.manual_seed(seed)
    return FlowPolicy(SHAPE, denoise or DenoisingSettings(steps=8))


def alone(policy: FlowPolicy, request: GenerationRequest = REQUEST, seed: int = 0) -> Generation:
    return generate(DenoisingEngine(policy, seed=seed), [request])[0]


def bits(generation: Generation) -> tuple[object, ...]:
    """Without the log-prob of the last step, which has no noise: it is NaN."""
    return generation.tokens, generation.actions, generation.versions, generation.logp[:-1]


def others(n: int) -> list[GenerationRequest]:
    return [replace(REQUEST, context=(FIRST + i % 3, FIRST), draw_id=i, stream=(i, 1)) for i in range(n)]


def test_the_first_state_and_each_noise_are_normals_of_their_own_step() -> None:
    generation = alone(policy_with())
    numbers = normals((0, 0), [5] * 3, [2] * 3, [0, 1, 2], 12).view(3, 3, 2, 2)
    arrays = [torch.from_numpy(decode_action(a).copy()) for a in generation.actions]
    assert torch.equal(arrays[0][0], numbers[0])
    std = FlowGrpoNoise(0.7)(numbers[:1], numbers[:1], torch.tensor([1.0]), torch.tensor([0.875]))[1]
    torch.testing.assert_close(arrays[0][1] - arrays[0][2], std * numbers[1])
    assert all(torch.equal(a[1], b[0]) for a, b in pairwise(arrays))


def test_normals_have_the_moments_of_a_normal_law() -> None:
    x = normals((3, 0), range(64), [0] * 64, [7] * 64, 193).double()
    assert x.shape == (64, 193) and abs(x.mean()) < 0.03 and abs(x.std() - 1) < 0.03
    assert abs((x**4).mean() - 3) < 0.2 and abs((x[:, 0:192:4] * x[:, 1:193:4]).mean()) < 0.05


def test_a_request_continues_its_path_to_the_bit() -> None:
    policy = policy_with()
    whole, first = alone(policy), alone(policy, replace(REQUEST, limit=3))
    rest = replace(
        REQUEST, limit=5, already_generated_count=3, context=(*REQUEST.context, 0, 1, 2), previous_actions=first.actions
    )
    second = alone(policy, rest)
    assert first.actions + second.actions == whole.actions and first.tokens + second.tokens == whole.tokens
    assert (first.finish, second.finish) == (Finish.length, Finish.stop)


def test_at_temperature_0_the_steps_are_those_of_the_ode() -> None:
    policy = policy_with()
    generation = alone(policy, replace(REQUEST, sampling=Sampling(temperature=0.0)))
    assert set(generation.versions) == {ENVIRONMENT} and all(x != x for x in generation.logp)
    x = normals((0, 0), [5], [2], [0], 12).view(1, 3, 2, 2)
    with torch.no_grad():
        for i in range(8):
            x = x - policy.velocity(x, torch.tensor([1 - i / 8]), torch.tensor([REQUEST.context])) / 8
    np.testing.assert_allclose(decode_action(generation.actions[-1])[1], x[0].numpy(), atol=1e-6)


def test_a_window_of_noise_is_drawn_for_each_prompt() -> None:
    policy, firsts = policy_with(), set[int]()
    for number in range(12):
        draw = Draw(number, Prompt("p", REQUEST.context), 2)
        sampler = sampler_of(DenoisingEngine(policy, seed=0), draw, sampling=Sampling(max_tokens=8))
        samples = asyncio.run(NoiseWindowStrategy(2, 1, 4)(draw, sampler)).samples
        trained = [[t for t, noisy in zip(s.tokens, s.trained) if noisy] for s in samples]
        assert trained[0] == trained[1] == [trained[0][0], trained[0][0] + 1]
        assert all(s.tokens == tuple(range(8)) and s.finish is Finish.stop for s in samples)
        firsts.add(trained[0][0])
    assert firsts == {1, 2, 3} and NoiseWindowStrategy(2, 1, 4).noisy_steps == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="min_start_step < start_step_below"):
        NoiseWindowStrategy(2, 3, 3)


def test_a_temperature_multiplies_the_noise_and_log_probs_stay_those_of_the_policy() -> None:
    policy = policy_with()
    plain, wide = (alone(policy, replace(REQUEST, limit=1, sampling=Sampling(temperature=t))) for t in (1.0, 3.0))
    (before, after, mean), (before_3, after_3, mean_3) = (decode_action(g.actions[0]) for g in (plain, wide))
    assert np.array_equal(before, before_3) and np.array_equal(mean, mean_3)
    np.testing.assert_allclose(after_3 - mean, 3 * (after - mean), atol=1e-5)
    std = FlowGrpoNoise(0.7)(torch.zeros(1), torch.zeros(1), torch.tensor([1.0]), torch.tensor([0.875]))[1]
    expected = log_density(torch.from_numpy(after_3[None].copy()), torch.from_numpy(mean[None].copy()), std)
    assert wide.logp[0] == pytest.approx(expected.item(), abs=1e-4)


def test_forks_before_the_first_step_have_the_first_state_of_their_sample() -> None:
    forks = [alone(policy_with(), replace(REQUEST, stream=(2, 0, i))) for i in range(2)]
    states = [decode_action(g.actions[0]) for g in (alone(policy_with()), *forks)]
    assert all(np.array_equal(s[0], states[0][0]) for s in states) and len({s[1].tobytes() for s in states}) == 3


def test_steps_outside_the_window_have_no_noise_and_are_not_actions() -> None:
    generation = alone(policy_with(DenoisingSettings(steps=8, noise_start_step=2, noise_end_step=4)))
    assert generation.versions == (ENVIRONMENT,) * 2 + (0,) * 2 + (ENVIRONMENT,) * 4
    assert [x == x for x in generation.logp] == [o == 0 for o in generation.versions]


@pytest.mark.parametrize(
    "noise", [FlowGrpoNoise(0.7), DanceGrpoNoise(0.3), CoefficientsPreservingNoise(0.7), IntegratedNoise(0.7)]
)
def test_the_engine_has_the_learners_log_probs(noise: DenoisingNoise) -> None:
    policy = policy_with(DenoisingSettings(noise=noise, steps=8, time_shift=2.0))
    generation = alone(policy)
    sample = Sample(
        context=REQUEST.context, stream=(2,), limit=8, tokens=generation.tokens, origin=generation.versions,
        logp=generation.logp, actions=generation.actions, finish=generation.finish, verdict=Verdict(Outcome.correct),
    )  # fmt: skip
    batch = pack([Rollout(Draw(5, Prompt("p", REQUEST.context), 1), (sample,))])
    assert batch.tokens == 7  # the last step has no noise
    numbers = policy.measure(batch, [Logp("policy"), Entropy()], {})
    torch.testing.assert_close(numbers[Logp("policy")].double(), batch.logp_engine, atol=1e-5, rtol=0)
    # The mean log-density of a state is -entropy + (1 - mean square of its noise) / 2.
    squares = torch.stack([
        normals((0, 0), [5], [2], [t + 1], 12).square().mean() for t in range(7)
    ])  # fmt: skip
    torch.testing.assert_close(numbers[Logp("policy")], -numbers[Entropy()] + (1 - squares) / 2, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("noise", "tolerance"), [(FlowGrpoNoise(0.0), 0.02), (FlowGrpoNoise(0.7), 0.1), (DanceGrpoNoise(0.7), 0.03)]
)
def test_marginals_are_those_of_the_flow(noise: DenoisingNoise, tolerance: float) -> None:
    """Data of N(1, 1/4) have an exact velocity: mean and std of the states along 40 steps, over 4,000 paths."""
    random = torch.Generator().manual_seed(0)
    x, steps = torch.randn(4000, 1, generator=random, dtype=torch.float64), 40
    for i in range(steps - 1):
        t, s = 1 - i / steps, 1 - (i + 1) / steps
        variance = (1 - t) ** 2 / 4 + t**2
        data = 1 + (1 - t) / 4 / variance * (x - (1 - t))
        velocity = t / variance * (x - (1 - t)) - data
        now, then = (torch.full((len(x),), time, dtype=torch.float64) for time in (t, s))
        mean, std = noise(x, velocity, now, then)
        x = mean + std[:, None] * torch.randn(x.shape, generator=random, dtype=torch.float64)
        expected = (1 - s), ((1 - s) ** 2 / 4 + s**2) ** 0.5
        assert abs(x.mean() - expected[0]) < 0.06 and abs(x.std() - expected[1]) < tolerance, (s, x.mean(), x.std())


def test_coefficients_preserving_noise_keeps_the_coefficients_of_data_and_noise() -> None:
    """With the true velocity of one datum and one noise, the mean has the flow's datum, and the noise adds up."""
    data, noise = torch.tensor([[0.5, -1.0]]), torch.tensor([[1.0, 2.0]])
    now, then = torch.tensor([0.6]), torch.tensor([0.5])
    mean, std = CoefficientsPreservingNoise(0.3)(0.4 * data + 0.6 * noise, noise - data, now, then)
    kept = (mean - 0.5 * data) / noise
    torch.testing.assert_close(kept.square() + std**2, torch.full((1, 2), 0.25))


def test_log_densities_do_not_grow_with_the_size_of_a_state() -> None:
    x, std = torch.full((1, 4), 0.5), torch.tensor([0.3])
    one, many = (log_density(x[:, :n], torch.zeros(1, n), std) for n in (1, 4))
    torch.testing.assert_close(one, many)


def test_load_cuts_running_samples_and_new_weights_count_at_once() -> None:
    policy, other = policy_with(), policy_with(seed=1)
    engine = DenoisingEngine(policy, seed=0)

    async def interrupted() -> tuple[Generation, Generation]:
        task = asyncio.create_task(engine.sample(REQUEST))
        for _ in range(4):
            await asyncio.sleep(0)
        await engine.load(1, other.state_dict())
        first = await task
        rest = replace(
            REQUEST, already_generated_count=len(first.tokens), context=(*REQUEST.context, *first.tokens),
            previous_actions=first.actions, limit=8 - len(first.tokens),
        )  # fmt: skip
        return first, await engine.sample(rest)

    first, rest = asyncio.run(interrupted())
    assert first.finish is Finish.cut and 0 < len(first.tokens) < 8 and set(first.versions) == {0}
    assert set(rest.versions) == {1, ENVIRONMENT} and len(first.tokens + rest.tokens) == 8
    assert alone(policy).actions == alone(other).actions
    with pytest.raises(ValueError, match="do not fit the model"):
        asyncio.run(engine.load(2, {}))


def test_a_cancelled_request_leaves_and_an_error_reaches_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DenoisingEngine(policy_with(), seed=0)

    async def cancelled() -> Generation:
        task = asyncio.create_task(engine.sample(replace(REQUEST, draw_id=9)))
        await asyncio.sleep(0)
        task.cancel()
        return await engine.sample(REQUEST)

    assert bits(asyncio.run(cancelled())) == bits(alone(policy_with()))

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(engine, "_record", fail)

    async def failing() -> list[object]:
        return await asyncio.gather(*(engine.sample(r) for r in (REQUEST, *others(2))), return_exceptions=True)

    assert [str(x) for x in asyncio.run(asyncio.wait_for(failing(), PATIENCE))] == ["no memory"] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_may_ask_for_another_number_of_steps(temperature: float) -> None:
    """Among requests with the policy's own number, it has the bits of a policy that denoises so."""
    request = replace(REQUEST, limit=20, sampling=Sampling(temperature=temperature))
    mixed = [replace(request, denoising_steps=20), request, replace(request, denoising_steps=3, stream=(3,))]
    policy = policy_with(DenoisingSettings(steps=8, time_shift=3.0))
    for ours, steps, asked in zip(generate(DenoisingEngine(policy, seed=0), mixed), (20, 8, 3), mixed, strict=True):
        assert ours.tokens == tuple(range(steps)) and ours.finish is Finish.stop
        theirs = alone(
            policy_with(DenoisingSettings(steps=steps, time_shift=3.0)), replace(asked, denoising_steps=None)
        )
        assert ours.actions == theirs.actions and ours.versions == theirs.versions


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (replace(REQUEST, context=(FIRST,)), "2 words of its vocabulary"),
        (replace(REQUEST, context=(3, FIRST)), "2 words of its vocabulary"),
        (replace(REQUEST, already_generated_count=1, context=(*REQUEST.context, 0)), "continue from actions"),
    ],
)
def test_requests_that_do_not_fit_are_refused(request_: GenerationRequest, words: str) -> None:
    with pytest.raises(Usage, match=words):
        alone(policy_with(), request_)
    with pytest.raises(Usage, match="cannot score"):
        asyncio.run(DenoisingEngine(policy_with(), seed=0).score((FIRST, FIRST), (0,)))


def test_retraced_samples_have_written_steps_of_the_forward_process() -> None:
    policy = policy_with(DenoisingSettings(noise=FlowGrpoNoise(0.0), steps=8))
    draw = Draw(3, Prompt("p", REQUEST.context), 2)
    engine = DenoisingEngine(policy, seed=0)
    plain, retraced = (
        asyncio.run(strategy(draw, sampler_of(engine, draw, sampling=Sampling(max_tokens=8))))
        for strategy in (Independent(), ForwardProcess())
    )
    for before, after in zip(plain.samples, retraced.samples, strict=True):
        assert after.tokens == tuple(range(7)) and set(after.origin) == {WRITTEN} and after.verdict == before.verdict
        actions = [decode_action(action) for action in after.actions]
        assert all(np.array_equal(a[1], decode_action(before.actions[-1])[1]) for a in actions)
        assert len({a[0].tobytes() for a in actions}) == 7
    batch = pack([retraced])
    x, v = (
        torch.from_numpy(np.stack([decode_action(a)[i] for s in retraced.samples for a in s.actions])) for i in (0, 1)
    )
    now = torch.tensor([1 - i / 8 for i in range(7)] * 2)
    with torch.no_grad():
        state = (1 - now[:, None, None, None]) * v + now[:, None, None, None] * x
        velocity = policy.velocity(state, now, torch.tensor([REQUEST.context] * 14))
    expected = -(velocity - (x - v)).flatten(1).square().mean(1) / 2
    torch.testing.assert_close(policy.measure(batch, [Logp("policy")], {})[Logp("policy")], expected)
