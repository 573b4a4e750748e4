"""`ForwardProcess`: a sampling strategy whose samples are trained on the forward process, not on their own steps."""

import math
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

import numpy as np

from groupwise.data import WRITTEN, Draw, Finish, Rollout, Sample, Sampler, Strategy
from groupwise.models import RandomPurpose, lineage
from groupwise.models.flow.counter_based_normals import normals
from groupwise.models.flow.denoising_actions import decoded_picture, encode_action, final_state
from groupwise.rollout.strategies.independent import Independent

__all__ = ["ForwardProcess"]


@dataclass(frozen=True, slots=True)
class ForwardProcess(Strategy):
    """Replaces the denoising steps of each finished sample by steps of the forward process from its final state.

    The tokens are written at the times of all steps but the last, or at one of these times, drawn for the whole group.
    Each has its own noise. So any sampler can be trained on, also one without noise. DiffusionNFT, arXiv:2509.16117.
    """

    makes_own_noise: ClassVar[bool] = True

    strategy: Strategy = Independent()  # noqa: RUF009
    trained_times: Literal["all", "one"] = "all"

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.strategy(draw, sampler)
        chosen = sampler.random().random() if self.trained_times == "one" else None
        return replace(rollout, samples=tuple(retraced(s, draw, sampler, chosen) for s in rollout.samples))


def retraced(sample: Sample, draw: Draw, sampler: Sampler, chosen: float | None = None) -> Sample:
    """A copy whose tokens are written steps of the forward process. A sample without a final state is unchanged.

    With `chosen`, a number from 0 to 1, there is one step: the one at this share of all of them.
    """
    data = final_state(sample.actions)
    if data is None or sample.finish is not Finish.stop or not np.isfinite(data).all():
        return sample
    n = len(sample.tokens) - 1
    first, end = (0, n) if chosen is None else (int(chosen * n), int(chosen * n) + 1)
    steps = sample.tokens[first:end]
    key = (sampler.random(*sample.stream).getrandbits(32), RandomPurpose.STRATEGY)
    noise = normals(key, [draw.id] * len(steps), [lineage(sample.stream)] * len(steps), steps, prod(data.shape)).numpy()
    pictures = [*[None] * (len(steps) - 1), decoded_picture(sample.actions)]  # of latents: a picture ends the path
    path = tuple(encode_action(row.reshape(data.shape), data, picture=p) for row, p in zip(noise, pictures))
    written = {"tokens": steps, "origin": (WRITTEN,) * len(steps), "logp": (math.nan,) * len(steps), "actions": path}
    begin = sample.token_ends[first - 1] if first else 0
    ends = tuple(e - begin for e in sample.token_ends[first:end])
    return replace(sample, **written).with_text(sample.text[begin : begin + ends[-1]], ends)
