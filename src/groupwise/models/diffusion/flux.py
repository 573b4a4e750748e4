"""FLUX.1: a CLIP for the pooled embedding, a T5 for the tokens, packed latents, and guidance as a number it reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.models.diffusion.pipeline_family import SIZE, Conditions, decoder_scale
from groupwise.models.diffusion.pipeline_shape import PipelineShape
from groupwise.models.json_fields import whole
from groupwise.models.model_json_files import read_json

__all__ = ["FluxFamily"]

T5_TOKENS = 512
"""The most tokens of a prompt for T5. Pipelines of dev have 512, of schnell 256, by the tokenizer's own length."""
UNBOUNDED = 10**31
"""A bound above the length that tokenizers write if they have none."""
TRAINED = 1000
"""The factor of times and guidance inside the transformer."""
AXES = (16, 56, 56)
"""The numbers of a head for each coordinate of a position; the published configurations leave them out."""
GRID = 1024
"""The most tokens on a side of a picture: positions are computed, so memory is the narrower bound."""


@dataclass(frozen=True, slots=True)
class FluxFamily:
    """`FluxPipeline`, dev and schnell. States are latents as the decoder reads them; only the transformer packs them.

    Packing is a permutation, so that steps, noise and log-probs are the same for both layouts. With `guidance_embeds`
    (dev) the transformer reads the scale of guidance, in one forward; without (schnell) it has none.
    """

    pipeline_class: ClassVar[str] = "FluxPipeline"
    required_parts: ClassVar[Mapping[str, str]] = {
        "transformer": "FluxTransformer2DModel", "scheduler": "FlowMatchEulerDiscreteScheduler", "vae": "AutoencoderKL",
        "text_encoder": "CLIPTextModel", "tokenizer": "CLIPTokenizer",
        "text_encoder_2": "T5EncoderModel", "tokenizer_2": "T5Tokenizer",
    }  # fmt: skip
    optional_parts: ClassVar[Mapping[str, str]] = {}

    def shape(self, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> PipelineShape:
        names = ("in_channels", "num_layers", "num_single_layers", "attention_head_dim", "num_attention_heads")
        packed, double, single, head, heads = (whole(transformer, name, low=1, high=SIZE) for name in names)
        size, channels = (whole(vae, name, low=1, high=SIZE) for name in ("sample_size", "latent_channels"))
        written, patch = transformer.get("out_channels") or packed, transformer.get("patch_size", 1)
        if not (packed == written == 4 * channels and patch == 1):
            sizes = f"in_channels {packed}, out_channels {written}, patch_size {patch}"
            raise ValueError(f"the transformer has {sizes}; it must read and write 2x2 latents of {channels} channels")
        if sum(axes := transformer.get("axes_dims_rope", AXES)) != head:
            raise ValueError(f"axes_dims_rope {list(axes)} do not add up to attention_head_dim {head}")
        scale = decoder_scale(vae)
        return PipelineShape(
            layers=double + single, state_shape=(channels, size // scale, size // scale), width=head * heads,
            default_picture_size=size, pixels_per_latent=scale, patch_size=2, position_grid_side_tokens=GRID,
            guidance_kind="embedded" if transformer.get("guidance_embeds") else "none",
        )  # fmt: skip

    def prompt_tokens(self, path: Path) -> int:
        t5 = read_json(path / "tokenizer_2" / "tokenizer_config.json")
        return min(T5_TOKENS, whole(t5, "model_max_length", low=1, high=UNBOUNDED, default=T5_TOKENS))

    def sigmas(self, steps: int) -> list[float]:
        return np.linspace(1, 1 / steps, steps).tolist()

    def embed(self, pipe: Any, text: str) -> Conditions:
        most = min(T5_TOKENS, pipe.tokenizer_2.model_max_length)
        tokens, pooled, _ = pipe.encode_prompt(text, max_sequence_length=most)
        return tokens, pooled

    def velocity(
        self,
        transformer: Any,
        x: Float[Tensor, "n c h w"],
        t: Float[Tensor, " n"],
        conditions: Conditions,
        guidance: float,
    ) -> Float[Tensor, "n c h w"]:
        (tokens, pooled), rows, columns = conditions, x.shape[2] // 2, x.shape[3] // 2
        embedded = torch.full_like(t, guidance) if transformer.config.guidance_embeds else None
        out = transformer(
            hidden_states=packed(x), timestep=t / TRAINED, guidance=embedded, encoder_hidden_states=tokens,
            pooled_projections=pooled, txt_ids=t.new_zeros(tokens.shape[1], 3), img_ids=positions(rows, columns).to(t),
            return_dict=False,
        )[0]  # fmt: skip
        return unpacked(out, rows, columns)


def packed(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n tokens packed"]:
    """Latents as tokens: each of 2x2 pixels, channels first.

    >>> packed(torch.arange(8.0).view(1, 1, 2, 4))
    tensor([[[0., 1., 4., 5.],
             [2., 3., 6., 7.]]])
    """
    n, channels, rows, columns = x.shape
    patches = x.view(n, channels, rows // 2, 2, columns // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(n, rows * columns // 4, 4 * channels)


def unpacked(tokens: Float[Tensor, "n tokens packed"], rows: int, columns: int) -> Float[Tensor, "n c h w"]:
    """The latents of `rows` x `columns` tokens.

    >>> unpacked(packed(torch.arange(8.0).view(1, 1, 2, 4)), 1, 2)
    tensor([[[[0., 1., 2., 3.],
              [4., 5., 6., 7.]]]])
    """
    n, channels = len(tokens), tokens.shape[2] // 4
    patches = tokens.view(n, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(n, channels, 2 * rows, 2 * columns)


def positions(rows: int, columns: int) -> Float[Tensor, "tokens 3"]:
    """The position of each token of a picture: 0, its row and its column. The positions of a prompt are zeros.

    >>> positions(1, 2)
    tensor([[0., 0., 0.],
            [0., 0., 1.]])
    """
    return torch.cartesian_prod(torch.zeros(1), torch.arange(rows).float(), torch.arange(columns).float())
