"""The sizes of a pipeline, from the config.json of its transformer and of its decoder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.data import BadData, Ids, Usage
from groupwise.models.fields import whole
from groupwise.models.files import read_json
from groupwise.models.flow.velocity import END, FlowShape
from groupwise.models.pipelines.index import pipeline_index
from groupwise.models.pipelines.settings import Pipeline

__all__ = ["PipelineShape", "pipeline_shape", "sized"]

BYTES = 256
LONGEST = 4096
"""The most bytes of a prompt."""
SIZE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape(FlowShape):
    """The sizes of a pipeline. Its words are the bytes of a prompt; `width` is that of the transformer.

    A latent covers `scale` pixels on a side, a token of the transformer `patch` latents; there are positions for `grid`
    tokens on a side.
    """

    scale: int
    patch: int
    grid: int

    @property
    def size(self) -> int:
        """The side of a picture, in pixels."""
        return self.state[1] * self.scale

    @property
    def graded(self) -> tuple[int, ...]:
        return 3, self.size, self.size

    @property
    def prompt(self) -> str:
        return f"1 to {self.places} bytes of text"

    def takes(self, words: Ids) -> bool:
        return 0 < len(words) <= self.places and min(words) > END


def pipeline_shape(path: Path) -> PipelineShape:
    """The sizes of the pipeline in a directory. BadData for one that cannot be trained here, as in `pipeline_index`."""
    pipeline_index(path)
    transformer, vae = read_json(path / "transformer" / "config.json"), read_json(path / "vae" / "config.json")
    try:
        return shape_of_configs(transformer, vae)
    except (KeyError, TypeError, ValueError) as error:
        what = f"the config.json of transformer and vae in {path} do not describe a pipeline"
        raise BadData(what, evidence=str(error), fix="fetch the directory again") from error


def shape_of_configs(transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> PipelineShape:
    """The sizes in two configurations. KeyError, TypeError or ValueError for invalid ones."""
    names = (
        "sample_size", "patch_size", "in_channels", "num_layers", "attention_head_dim", "num_attention_heads",
        "pos_embed_max_size",
    )  # fmt: skip
    side, patch, channels, layers, head, heads, grid = (whole(transformer, name, low=1, high=SIZE) for name in names)
    latents = whole(vae, "latent_channels", low=1, high=SIZE)
    if latents != channels:
        raise ValueError(f"the transformer has in_channels {channels}, the decoder latent_channels {latents}")
    return PipelineShape(
        vocabulary=END + 1 + BYTES, layers=layers, state=(channels, side, side), words=BYTES, places=LONGEST,
        width=head * heads, scale=2 ** (len(vae["block_out_channels"]) - 1), patch=patch, grid=grid,
    )  # fmt: skip


def sized(shape: PipelineShape, settings: Pipeline) -> PipelineShape:
    """The sizes with pictures as a recipe asks for. `Usage` for a size that the transformer does not take."""
    size, unit = settings.size or shape.size, shape.scale * shape.patch
    if size // unit * unit != size or size > unit * shape.grid:
        what = (
            f"pipeline.size is {size}: a side of a picture is a multiple of {unit} pixels, at most {unit * shape.grid}"
        )
        raise Usage(what, fix=f"use --pipeline.size {max(unit, min(size // unit, shape.grid) * unit)}")
    side = size // shape.scale
    return replace(shape, state=(shape.state[0], side, side))
