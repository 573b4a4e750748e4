"""Linear velocity fields, made-up groups of denoising steps, and the comparison of whole paths with transcriptions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from groupwise.data import ENVIRONMENT, WRITTEN, Batch, Draw, Finish, Logp, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.data import pack as packed
from groupwise.methods import Method
from groupwise.models import DenoisingSettings, FlowPolicy, FlowShape, encode_action
from groupwise.training.loop import compute_advantages
from tests.golden import papers_flow as papers

STEPS, WORDS, SIZE, FIRST = 4, 2, 2, 65
REWARDS = ([1.0, 0.0, 0.25], [0.0, 1.0, 0.5])
Groups = list[tuple[list[list[papers.Step]], list[float]]]


def f64(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def near(x: Any, expected: Any, tolerance: float = 1e-6) -> None:
    got = np.asarray(x.detach() if isinstance(x, Tensor) else x, float).ravel()
    np.testing.assert_allclose(got, np.asarray(expected, float).ravel(), rtol=0, atol=tolerance)


def policy_of(network: nn.Module, denoise: DenoisingSettings) -> FlowPolicy:
    shape = FlowShape(
        vocabulary_size=FIRST + WORDS, layers=1, state_shape=(SIZE,), prompt_vocabulary=WORDS, prompt_length=1, width=2
    )
    policy = FlowPolicy(shape, denoise)
    policy.velocity = network  # type: ignore[assignment]
    return policy.double()


class LinearField(nn.Module):
    """The velocity field of `papers.Field` as a module."""

    def __init__(self, field: papers.Field) -> None:
        super().__init__()
        self.w = nn.Parameter(f64(field.w.tolist()))
        self.b, self.c = f64(field.b.tolist()), f64(field.c.tolist())

    def forward(self, x: Tensor, t: Tensor, words: Tensor) -> Tensor:
        return x @ self.w + t[:, None] * self.b + self.c[words[:, 0] - FIRST]


def made_up(
    denoise: DenoisingSettings, rng: np.random.Generator, written: Sequence[Sequence[int]] = (), part: str = ""
) -> tuple[Groups, Batch]:
    """Two groups of three samples with random actions at all steps but the last, or with `written` ones at its steps.

    Their scores are `REWARDS`; with `part` they are that subscore instead.
    """
    groups, rollouts = [], []
    for g, rewards in enumerate(REWARDS):
        steps = written[g] if written else range(STEPS - 1)
        samples, members = [], []
        for i, reward in enumerate(rewards):
            arrays = rng.normal(size=(len(steps), 3, SIZE)).astype(np.float32)
            actions = [encode_action(*(a[:2] if written else a)) for a in arrays]
            members.append([
                papers.Step(*denoise.times[t : t + 2], g, *map(np.asarray, a.astype(float)))
                for t, a in zip(steps, arrays)
            ])  # fmt: skip
            last = [] if written else [STEPS - 1]
            origin = [WRITTEN if written else 0] * len(steps) + [ENVIRONMENT] * len(last)
            verdict = (
                Verdict(Outcome.wrong, subscores={part: reward}) if part else Verdict(Outcome.scored, score=reward)
            )
            samples.append(Sample(
                context=(FIRST + g,), stream=(i,), limit=STEPS, tokens=(*steps, *last), origin=tuple(origin),
                logp=(math.nan,) * len(origin), actions=(*actions, *actions[: len(last)]), finish=Finish.stop,
                verdict=verdict,
            ))  # fmt: skip
        groups.append((members, rewards))
        rollouts.append(Rollout(Draw(g, Prompt(str(g), (FIRST + g,)), 3), tuple(samples)))
    return groups, packed(rollouts)


def compare_whole_path(
    method: Method, paper: Callable[..., Any], groups: Groups, batch: Batch, rng: np.random.Generator, moved: float
) -> None:
    """Loss of a method and its gradient by the weights of the velocity, against `paper(groups, new, old, other)`.

    `other` is the side model, but for "old".
    """
    assert method.denoise is not None
    w, b, c = rng.normal(size=(SIZE, SIZE)), rng.normal(size=SIZE), rng.normal(size=(WORDS, SIZE))
    old = papers.Field(w, b, c)
    new = papers.Field(w + moved * rng.normal(size=w.shape), b, c)
    other = papers.Field(w + 0.1 * rng.normal(size=w.shape), b, c)
    policy, sampler, side = (policy_of(LinearField(f), method.denoise) for f in (new, old, other))
    side_models = dict.fromkeys(dict(method.models), side) | {"old": sampler}
    before = sampler.measure(batch, [Logp("policy")], {})[Logp("policy")].detach()
    wanted = [Logp("policy"), *sorted((m for m in method.needs if not hasattr(m, "in_batch")), key=repr)]
    numbers = policy.measure(batch, wanted, side_models)
    logp = numbers.pop(Logp("policy"))
    step = compute_advantages(batch.having(logp_old=before, measures=numbers), method)
    loss = method.objective(method.objective.prepare(step).having(logp=logp))
    loss.backward()
    gradient = policy.velocity.w.grad
    assert isinstance(gradient, Tensor) and bool(torch.any(gradient))
    value = paper(groups, new, old, other)
    near(loss, value, 1e-12 * max(abs(value), 1))
    expected = slope(lambda field: paper(groups, field, old, other), new)
    near(gradient / abs(expected).max(), expected / abs(expected).max(), 1e-10)


def slope(paper: Callable[[papers.Field], Any], field: papers.Field) -> np.ndarray:
    """The derivative of a transcription by the weights of a field, by complex steps."""
    slopes = np.zeros_like(field.w)
    for index in np.ndindex(*field.w.shape):
        h = np.zeros(field.w.shape, complex)
        h[index] = 1e-30j
        slopes[index] = paper(replace(field, w=field.w + h)).imag / 1e-30
    return slopes
