"""Verifiers of the states that a flow policy ends in: points of the task `rings`, pictures of `quilts`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from groupwise.data import Finish, Outcome, Prompt, Sample, Verdict, VerifierSettings, verdicts_have
from groupwise.models.flow.denoising_actions import decoded_picture, graded_state
from groupwise.tasks.quilts import QUILT_COLOURS, QUILT_SHAPE, Quilts
from groupwise.tasks.rings import DIRECTIONS, RING_RADIUS, Rings, ring_centre

__all__ = ["QuiltPatches", "RingPointDirection"]

RING_NEAR = 0.5
"""The largest distance from the point of a direction."""


@verdicts_have("alignment")
@dataclass(frozen=True, slots=True)
class RingPointDirection(VerifierSettings):
    """Right if the last point is near the direction's point of the circle; near none of the eight is malformed.

    The subscore `alignment` is the point's coordinate along the direction. As a reward it can be hacked: it grows with
    the distance from the centre.
    """

    supported_tasks: ClassVar[tuple[type, ...]] = (Rings,)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        point = state_of(sample, (2,))
        if isinstance(point, Verdict):
            return point
        distances = {d: math.dist(point.tolist(), ring_centre(d)) for d in DIRECTIONS}
        nearest = min(DIRECTIONS, key=lambda d: distances[d])
        axis = np.array(ring_centre(prompt.row["answer"])) / RING_RADIUS
        parts = {"alignment": float(axis @ point.astype(float))}
        if distances[nearest] > RING_NEAR:
            return Verdict(Outcome.malformed, subscores=parts)
        return Verdict(Outcome(int(nearest == prompt.row["answer"])), subscores=parts, answer=nearest)


@verdicts_have("patches")
@dataclass(frozen=True, slots=True)
class QuiltPatches(VerifierSettings):
    """Right if each patch has its colour. A patch that is light in two channels has no colour: malformed.

    The subscore `patches` is the share of patches with their colour.
    """

    supported_tasks: ClassVar[tuple[type, ...]] = (Quilts,)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        picture = state_of(sample, QUILT_SHAPE)
        if isinstance(picture, Verdict):
            return picture
        colours = patch_colours(picture)
        right = sum(colour == wanted for colour, wanted in zip(colours, prompt.row["answer"], strict=True))
        outcome = Outcome.malformed if None in colours else Outcome(int(right == len(colours)))
        return Verdict(
            outcome, subscores={"patches": right / len(colours)}, answer=" ".join(c or "none" for c in colours)
        )


def patch_colours(picture: NDArray[np.float32]) -> list[str | None]:
    """The colour of each patch of a picture: its channel with a mean above 0, dark without one, None for several."""
    channels, rows, columns = picture.shape[0], *(side // 2 for side in picture.shape[1:])
    even = picture[:, : 2 * rows, : 2 * columns]
    means = even.reshape(channels, 2, rows, 2, columns).mean((2, 4)).reshape(channels, 4)
    light = (means > 0).T
    return [None if row.sum() > 1 else QUILT_COLOURS[int(row.argmax()) + 1 if row.any() else 0] for row in light]


def state_of(sample: Sample, shape: tuple[int, ...] | None) -> NDArray[np.float32] | Verdict:
    """The sample's final state, or the verdict on a sample without one: not denoised, another shape, not finite.

    The decoded picture of a pipeline may have any size, and with the shape None, any state.
    """
    state = graded_state(sample.actions)
    if state is None or sample.finish is not Finish.stop:
        return Verdict(Outcome.malformed)
    fits = shape in (None, state.shape)
    if shape is not None and len(shape) == 3:
        fits |= decoded_picture(sample.actions) is not None
    if not fits or not np.isfinite(state).all():
        return Verdict(
            Outcome.unverifiable, cause=f"a state of shape {state.shape}, or with a number that is not finite"
        )
    return state


def verdict_of_parts(parts: Mapping[str, bool], asks: str, answer: str) -> Verdict:
    """The verdict on parts that hold or not: right if the part `asks` holds, or, where that is "", all do."""
    right = parts[asks] if asks else all(parts.values())
    return Verdict(Outcome(int(right)), subscores={name: float(holds) for name, holds in parts.items()}, answer=answer)
