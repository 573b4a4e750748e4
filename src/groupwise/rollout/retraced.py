"""`Retraced`: a sampling strategy whose samples are trained on the forward process, not on their own steps."""

import math
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from groupwise.data import WRITTEN, Draw, Finish, Rollout, Sample, Sampler, Strategy
from groupwise.models import Purpose, lineage
from groupwise.models.flow.actions import decoded_picture, encode_action, final_state
from groupwise.models.flow.normals import normals
from groupwise.rollout.strategy import Independent

SOCKET = "Strategy"
__all__ = ["Retraced"]


@dataclass(frozen=True, slots=True)
class Retraced:
    """Replaces the denoising steps of each finished sample by steps of the forward process from its final state.

    The tokens are written at the times of all steps but the last, each with its own noise. So any sampler can be
    trained on, also one without noise. DiffusionNFT, arXiv:2509.16117.
    """

    strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.strategy(draw, sampler)
        return replace(rollout, samples=tuple(retraced(s, draw, sampler) for s in rollout.samples))


def retraced(sample: Sample, draw: Draw, sampler: Sampler) -> Sample:
    """A copy whose tokens are written steps of the forward process. A sample without a final state is unchanged."""
    data = final_state(sample.path)
    if data is None or sample.finish is not Finish.stop or not np.isfinite(data).all():
        return sample
    steps = sample.tokens[:-1]
    n = len(steps)
    key = (sampler.random(*sample.stream).getrandbits(32), Purpose.STRATEGY)
    noise = normals(key, [draw.id] * n, [lineage(sample.stream)] * n, steps, prod(data.shape)).numpy()
    pictures = [*[None] * (n - 1), decoded_picture(sample.path)]  # of latents: a picture ends the path
    path = tuple(encode_action(row.reshape(data.shape), data, picture=p) for row, p in zip(noise, pictures))
    written = {"tokens": steps, "origin": (WRITTEN,) * n, "logp": (math.nan,) * n, "path": path}
    return replace(sample, **written).with_text(sample.text[: sample.ends[n - 1]], sample.ends[:n])
