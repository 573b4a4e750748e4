"""`PipelineFamily`: the code that differs between classes of pipelines. The rest of the room is common to all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from groupwise.models.diffusion.pipeline_shape import PipelineShape

Conditions = tuple[Tensor, Tensor]
"""The embeddings of prompts: of their tokens [n, tokens, width], and pooled [n, width]."""
SIZE = 1 << 16
"""The largest size in a configuration."""
MOST_BLOCKS = 8


def decoder_scale(vae: Mapping[str, Any]) -> int:
    """The upscaling factor of the VAE decoder: each of its blocks but one doubles the side of a picture.

    >>> decoder_scale({"block_out_channels": [128, 256, 512, 512]})
    8
    """
    blocks = vae["block_out_channels"]
    if not 1 <= len(blocks) <= MOST_BLOCKS:
        raise ValueError(f"block_out_channels has {len(blocks)} entries: it must have 1 to {MOST_BLOCKS}")
    return 2 ** (len(blocks) - 1)


@runtime_checkable
class PipelineFamily(Protocol):
    """The pipelines of one class of diffusers: their parts, sizes and times, and the arguments of their transformer."""

    pipeline_class: ClassVar[str]
    """The name of the class."""
    required_parts: ClassVar[Mapping[str, str]]
    """The parts that every pipeline of this family has, with their classes."""
    optional_parts: ClassVar[Mapping[str, str]]
    """Parts that may be missing, with their classes."""

    def shape(self, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> PipelineShape:
        """The sizes in two configurations. KeyError, TypeError or ValueError for invalid ones."""
        ...

    def prompt_tokens(self, path: Path) -> int:
        """The number of tokens of a prompt for the transformer, from the files of a directory."""
        ...

    def sigmas(self, steps: int) -> list[float] | None:
        """The times before the scheduler's shift; None for the scheduler's own."""
        ...

    def embed(self, pipe: Any, text: str) -> Conditions:
        """The embeddings of a prompt."""
        ...

    def velocity(
        self,
        transformer: Any,
        x: Float[Tensor, "n c h w"],
        t: Float[Tensor, " n"],
        conditions: Conditions,
        guidance: float,
    ) -> Float[Tensor, "n c h w"]:
        """One forward of the transformer. Times are the scheduler's, by default from 1000 to 0."""
        ...
