"""G2RPO: its worked advantages, the schedules of its strides, and the whole path against a NumPy transcription."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from groupwise.advantages import EachStandardised
from groupwise.data import (
    ENVIRONMENT,
    Draw,
    GenerationRequest,
    Logp,
    Outcome,
    Prompt,
    Rollout,
    Sample,
    Sampling,
    Verdict,
    pack,
    rollout_of,
)
from groupwise.engines.steps.denoising import DenoisingEngine
from groupwise.methods import OneNoisyStep, g2rpo
from groupwise.models import DenoisingSettings, FlowGrpoNoise, decode_action, final_state
from groupwise.training.loop import compute_advantages
from tests.golden import papers_flow as papers
from tests.golden.flow_groups import FIRST, SIZE, WORDS, LinearField, near, policy_of, slope
from tests.rollout.fakes import sampler_of

RANDOM = np.random.default_rng(6)
FIELD = papers.Field(RANDOM.normal(size=(SIZE, SIZE)), RANDOM.normal(size=SIZE), RANDOM.normal(size=(WORDS, SIZE)))
WORD = 1


async def by_state(prompt: Prompt, sample: Sample) -> Verdict:
    """A score from the final state."""
    state = final_state(sample.actions)
    assert state is not None
    return Verdict(Outcome.scored, float(np.tanh(state).sum()))


def sampled(strategy: OneNoisyStep, n: int, steps: int, field: papers.Field = FIELD) -> Rollout:
    engine = DenoisingEngine(
        policy_of(LinearField(field), DenoisingSettings(noise=FlowGrpoNoise(0.7), steps=steps)), seed=0
    )
    draw = Draw(3, Prompt("p", (FIRST + WORD,)), n)
    sampler = sampler_of(engine, draw, verifier=by_state, sampling=Sampling(max_tokens=steps))
    return asyncio.run(strategy(draw, sampler))


def test_worked_advantages() -> None:
    """Two reward models by two strides: four z-scores are added; equal rewards add 0."""
    parts = {"hps_1": [0.30, 0.26, 0.28], "hps_2": [0.31, 0.30, 0.26], "clip_1": [0.9, 0.5, 0.7], "clip_2": [0.6] * 3}
    batch = pack([rollout_of([0.0] * 3, subscores=parts)])

    def advantage(*names: str) -> Any:
        return EachStandardised(tuple((n, 1.0) for n in names), main_reward_weight=0.0, ddof=1, eps=1e-8)(
            batch.verdict_score, batch
        )

    near(advantage("hps_1"), [1, -1, 0])
    near(advantage("hps_2"), [0.755929, 0.377964, -1.133893])
    near(advantage("clip_2"), [0, 0, 0], 0)
    near(advantage(*parts), [2.755928, -1.622035, -1.133893])
    near(advantage("hps_2", "hps_2"), 2 * advantage("hps_2"))


def schedule(steps: int, k: int, stride: int) -> list[float]:
    """The times of the specification: all up to that of step k + 1, then `stride` apart from step k + 2 on."""
    times = [1 - i / steps for i in range(steps + 1)]
    return times[: k + 2] + times[k + 2 :: stride]


def complete(x: Any, k: int, stride: int, steps: int) -> Any:
    """The estimate of the data at the last evaluation, which is a step to time 0."""
    times = schedule(steps, k, stride)[k + 1 :]
    for now, then in zip(times, [*times[1:-1], 0.0]):
        x = x - (now - then) * FIELD(x, now, WORD)
    return x


def test_schedules_of_the_strides() -> None:
    """The engine's final states and evaluations are those of the schedule."""
    near(schedule(10, 3, 1), [1 - i / 10 for i in range(11)], 1e-12)
    near(schedule(10, 3, 2), [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.1], 1e-12)
    near(schedule(10, 3, 3), [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.2], 1e-12)
    assert schedule(16, 3, 2)[-1] == 0.0625 and schedule(16, 2, 2)[-1] == 0
    strides = (1, 2, 3)
    for steps, ks in ((10, (0, 3, 6, 7, 8)), (16, (2, 3))):
        samples = sampled(OneNoisyStep(ks, strides), 1, steps).samples[1:]
        for i, sample in enumerate(samples):
            k, stride = ks[i // 3], strides[i % 3]
            noisy = decode_action(samples[3 * (i // 3)].actions[0])[1].astype(float)
            near(final_state(sample.actions), complete(noisy, k, stride, steps), 1e-6)
            evaluated = len(schedule(steps, k, stride)) - k - 2
            assert len(sample.actions) == evaluated + (stride == 1) and sample.tokens[-1] == steps - 1
            assert sample.origin == ((0,) if stride == 1 else ()) + (ENVIRONMENT,) * evaluated


def test_one_step_differs_and_its_samples_share_the_anchor() -> None:
    ks, n, steps = (0, 2), 3, 6
    rollout = sampled(OneNoisyStep(ks), n, steps)
    anchor, *rest = rollout.samples
    assert anchor.role == "anchor" and set(anchor.origin) == {ENVIRONMENT} and anchor.tokens == tuple(range(steps))
    answers, others = ([s for s in rest if s.role == role] for role in ("answer", "completion"))
    assert [s.group for s in answers] == [0] * n + [1] * n and len(others) == 2 * n
    for sample in answers:
        k = ks[sample.group]
        before, after, mean = decode_action(sample.actions[0])
        assert np.array_equal(before, decode_action(anchor.actions[k])[0]) and not np.array_equal(after, mean)
        assert sample.trained == (True,) + (False,) * (steps - k - 1)
        assert sample.verdict is not None and set(sample.verdict.subscores) == {"stride_1", "stride_2"}
        assert sample.verdict.value == sample.verdict.subscores["stride_1"] != sample.verdict.subscores["stride_2"]
    assert len({s.actions[0] for s in answers}) == 2 * n
    evaluations = sum(1 + len(schedule(steps, k, g)[k + 2 :]) - (g == 2) for k in ks for g in (1, 2) for _ in range(n))
    assert sum(len(s.tokens) for s in rollout.samples) == steps + evaluations


def paper_g2rpo(rollout: Rollout, new: Any, old: Any, ks: tuple[int, ...], n: int, steps: int) -> Any:
    """A loop over steps and members: the z-scores of both completions are added."""
    answers = [s for s in rollout.samples if s.role == "answer"]
    total = 0.0
    for group, k in enumerate(ks):
        members = answers[group * n : (group + 1) * n]
        actions = [decode_action(s.actions[0]).astype(float) for s in members]
        a = np.zeros(n)
        for stride in (1, 2):
            rewards = [s.verdict.subscores[f"stride_{stride}"] for s in members if s.verdict]
            completed = [complete(y, k, stride, steps) for _, y, _ in actions]
            near(rewards, np.tanh(completed).sum(1), 1e-5)  # the engine keeps states in float32
            a += (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-8)
        t, s = 1 - k / steps, 1 - (k + 1) / steps
        for (x, y, _), advantage in zip(actions, np.clip(a, -5, 5)):
            densities = [papers.log_density(y, *papers.flow_step(x, f(x, t, WORD), t, s)) for f in (new, old)]
            total += papers.clipped(advantage, np.exp(densities[0] - densities[1]), 1e-4)
    return total / (n * len(ks))


@pytest.mark.parametrize("moved", [1e-6, 1e-2])
def test_whole_path(moved: float) -> None:
    """Loss, and its gradient by the weights of the velocity: clipped and unclipped steps."""
    ks, n, steps = (0, 1, 3), 4, 6
    method = g2rpo(steps=steps, noisy=ks)
    rollout = sampled(method.strategy, n, steps)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    new = papers.Field(FIELD.w + moved * rng.normal(size=FIELD.w.shape), FIELD.b, FIELD.c)
    policies = [policy_of(LinearField(f), method.denoise or DenoisingSettings()) for f in (new, FIELD)]
    batch = pack([rollout])
    assert batch.tokens == n * len(ks) and len(batch) == batch.tokens
    old, logp = (p.measure(batch, [Logp("policy")], {})[Logp("policy")] for p in reversed(policies))
    step = compute_advantages(batch.having(logp_old=old.detach(), logp=logp), method)
    loss = method.objective(method.objective.prepare(step))
    loss.backward()
    near(loss, paper_g2rpo(rollout, new, FIELD, ks, n, steps), 1e-12)
    expected = slope(lambda field: paper_g2rpo(rollout, field, FIELD, ks, n, steps), new)
    gradient = policies[0].velocity.w.grad
    assert gradient is not None
    near(gradient, expected, 1e-10)


def test_a_request_continues_strided_steps_to_the_bit() -> None:
    policy = policy_of(LinearField(FIELD), DenoisingSettings(steps=10))
    request = GenerationRequest(
        context=(FIRST,), limit=10, draw_id=1, stream=(0,), steps_per_token=3, sampling=Sampling(temperature=0.0)
    )

    def generated(request: GenerationRequest) -> Any:
        return asyncio.run(DenoisingEngine(policy, seed=0).sample(request))

    whole, first = generated(request), generated(replace(request, limit=1))
    assert whole.tokens == (2, 5, 9) and first.tokens == (2,)
    rest = generated(
        replace(request, limit=9, already_generated_count=1, context=(FIRST, 2), previous_actions=first.actions)
    )
    assert first.actions + rest.actions == whole.actions
    with pytest.raises(ValueError, match="above 1 only at temperature 0"):
        generated(replace(request, sampling=Sampling()))
    with pytest.raises(ValueError, match="stride must be at least 1"):
        generated(replace(request, steps_per_token=0))


@pytest.mark.parametrize(
    "changes", [{"noise_at": ()}, {"noise_at": (1, 1)}, {"noise_at": (-1,)}, {"completion_strides": (0,)}]
)
def test_steps_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="different numbers of at least"):
        OneNoisyStep(**changes)
