"""The sizes of a pipeline, and how a recipe's settings change them."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from groupwise.core import Usage
from groupwise.data import Ids
from groupwise.models.diffusion.pipeline_settings import PipelineSettings
from groupwise.models.flow.velocity_network import END, FlowShape

__all__ = ["PipelineShape", "guidance_scale", "sized"]

BYTES = 256
LONGEST = 4096
"""The most bytes of a prompt."""
USUAL_GUIDANCE = {"classifier-free": 4.5, "embedded": 3.5, "none": 1.0}
"""The scale of guidance if a recipe sets none: 4.5 by Flow-GRPO's code, 3.5 by diffusers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape(FlowShape):
    """The sizes of a pipeline. Its words are the bytes of a prompt; `width` is the transformer's.

    A latent covers `pixels_per_latent` pixels on a side, a token of the transformer `patch_size` latents; there are
    positions for `position_grid_side_tokens` tokens on a side. `default_picture_size` is the side of the pictures that
    the transformer was made for. `guidance_kind` is how a picture is guided: by a second velocity, for the empty
    prompt; by a number that the transformer reads; or not at all.
    """

    kind_name: ClassVar[str] = "pipeline"

    vocabulary_size: int = END + 1 + BYTES
    prompt_vocabulary: int = BYTES
    prompt_length: int = LONGEST
    default_picture_size: int
    pixels_per_latent: int
    patch_size: int
    position_grid_side_tokens: int
    guidance_kind: Literal["classifier-free", "embedded", "none"]

    @property
    def size(self) -> int:
        """The side of a picture, in pixels."""
        return self.state_shape[1] * self.pixels_per_latent

    @property
    def tokens(self) -> int:
        """The number of the transformer's tokens of a picture."""
        return (self.state_shape[1] // self.patch_size) ** 2

    @property
    def graded(self) -> tuple[int, ...]:
        return 3, self.size, self.size

    @property
    def prompt(self) -> str:
        return f"1 to {self.prompt_length} bytes of text"

    def takes(self, words: Ids) -> bool:
        return 0 < len(words) <= self.prompt_length and min(words) > END


def sized(shape: PipelineShape, settings: PipelineSettings) -> PipelineShape:
    """The sizes with pictures as a recipe asks for. `Usage` for a size that the transformer does not take."""
    size, unit = settings.picture_size or shape.default_picture_size, shape.pixels_per_latent * shape.patch_size
    if size // unit * unit != size or size > unit * shape.position_grid_side_tokens:
        largest = unit * shape.position_grid_side_tokens
        what = f"pipeline.picture_size is {size}: a side of a picture is a multiple of {unit} pixels, at most {largest}"
        raise Usage(
            what,
            fix=f"use --pipeline.picture_size {max(unit, min(size // unit, shape.position_grid_side_tokens) * unit)}",
        )
    side = size // shape.pixels_per_latent
    return replace(shape, state_shape=(shape.state_shape[0], side, side))


def guidance_scale(shape: PipelineShape, settings: PipelineSettings) -> float:
    """The scale of guidance that a recipe asks for, or the usual one. `Usage` for a model that takes none."""
    scale = USUAL_GUIDANCE[shape.guidance_kind] if settings.guidance_scale is None else settings.guidance_scale
    if shape.guidance_kind == "none" and scale != 1:
        what = f"pipeline.guidance_scale is {scale}: this transformer was distilled to make pictures without guidance"
        raise Usage(
            what, evidence="guidance_embeds is false in its config.json", fix="leave pipeline.guidance_scale out"
        )
    return scale
