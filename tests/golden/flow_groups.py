"""Made-up groups of denoising steps, as transcriptions read them and as a batch, and the comparison of whole paths."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.data import ENVIRONMENT, WRITTEN, Batch, Draw, Finish, Logp, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.data import pack as packed
from groupwise.methods import Method
from groupwise.models import Denoise, encode_action
from groupwise.training.loop import compute_advantages
from tests.golden import papers_flow as papers
from tests.golden.test_flow import FIRST, SIZE, STEPS, WORDS, LinearField, near, policy_of

REWARDS = ([1.0, 0.0, 0.25], [0.0, 1.0, 0.5])
Groups = list[tuple[list[list[papers.Step]], list[float]]]


def made_up(
    denoise: Denoise, rng: np.random.Generator, written: Sequence[int] = (), part: str = ""
) -> tuple[Groups, Batch]:
    """Two groups of three samples with random actions at all steps but the last, or written ones at one step a group.

    Their scores are `REWARDS`; with `part` they are that subscore instead.
    """
    groups, rollouts = [], []
    for g, rewards in enumerate(REWARDS):
        steps = [written[g]] if written else list(range(STEPS - 1))
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
                logp=(math.nan,) * len(origin), path=(*actions, *actions[: len(last)]), finish=Finish.stop,
                verdict=verdict,
            ))  # fmt: skip
        groups.append((members, rewards))
        rollouts.append(Rollout(Draw(g, Prompt(str(g), (FIRST + g,)), 3), tuple(samples)))
    return groups, packed(rollouts)


def compare_whole_path(
    method: Method, paper: Callable[..., Any], groups: Groups, batch: Batch, rng: np.random.Generator, moved: float
) -> None:
    """Loss of a method and its gradient by the weights of the velocity, against `paper(groups, new, old, other)`.

    `other` is the side model. The derivatives of the transcription are complex steps.
    """
    assert method.denoise is not None
    w, b, c = rng.normal(size=(SIZE, SIZE)), rng.normal(size=SIZE), rng.normal(size=(WORDS, SIZE))
    old = papers.Field(w, b, c)
    new = papers.Field(w + moved * rng.normal(size=w.shape), b, c)
    other = papers.Field(w + 0.1 * rng.normal(size=w.shape), b, c)
    policy, sampler, side = (policy_of(LinearField(f), method.denoise) for f in (new, old, other))
    side_models = dict.fromkeys(dict(method.models), side)
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
    expected = np.zeros_like(w)
    for place in np.ndindex(*w.shape):
        h = np.zeros(w.shape, complex)
        h[place] = 1e-30j
        expected[place] = paper(groups, papers.Field(new.w + h, b, c), old, other).imag / 1e-30
    near(gradient / abs(expected).max(), expected / abs(expected).max(), 1e-10)
