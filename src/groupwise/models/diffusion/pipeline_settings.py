"""`PipelineSettings`: how a recipe uses a pipeline of diffusers."""

import math
from dataclasses import dataclass

from groupwise.core import check_types

__all__ = ["PipelineSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Settings of a diffusers pipeline: guidance scale, and picture size in pixels.

    With classifier-free guidance the velocity is `u + guidance_scale * (v - u)`, with v of the prompt and u of the
    empty prompt; 1 is v alone, at half the price. A model that was distilled with guidance (FLUX.1 dev) reads the scale
    as a number instead. Sampling and training use the same velocity. Without a `guidance_scale`, it is the usual one of
    the pipeline's class; without a `picture_size`, it is the size that the transformer was made for.
    """

    guidance_scale: float | None = None
    picture_size: int | None = None

    def __post_init__(self) -> None:
        check_types(self)
        if self.guidance_scale is not None and not (1 <= self.guidance_scale < math.inf):
            raise ValueError(f"guidance_scale is {self.guidance_scale}\nuse a number from 1, which is no guidance")
        if self.picture_size is not None and self.picture_size < 1:
            raise ValueError(f"picture_size is {self.picture_size}\nuse a number of pixels, such as 512")
