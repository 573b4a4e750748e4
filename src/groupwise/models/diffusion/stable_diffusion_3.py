"""Stable Diffusion 3 and 3.5: two CLIPs, an optional T5, and classifier-free guidance."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from groupwise.models.diffusion.pipeline_family import SIZE, Conditions, decoder_scale
from groupwise.models.diffusion.pipeline_shape import PipelineShape
from groupwise.models.json_fields import whole
from groupwise.models.model_json_files import read_json

__all__ = ["StableDiffusion3Family"]

T5_TOKENS = 256
"""Tokens of a prompt for T5, as diffusers pads them; without T5 they are zeros."""


@dataclass(frozen=True, slots=True)
class StableDiffusion3Family:
    """`StableDiffusion3Pipeline`. The transformer cuts latents into patches, and has a table of positions."""

    pipeline_class: ClassVar[str] = "StableDiffusion3Pipeline"
    required_parts: ClassVar[Mapping[str, str]] = {
        "transformer": "SD3Transformer2DModel", "scheduler": "FlowMatchEulerDiscreteScheduler", "vae": "AutoencoderKL",
        "text_encoder": "CLIPTextModelWithProjection", "tokenizer": "CLIPTokenizer",
        "text_encoder_2": "CLIPTextModelWithProjection", "tokenizer_2": "CLIPTokenizer",
    }  # fmt: skip
    optional_parts: ClassVar[Mapping[str, str]] = {"text_encoder_3": "T5EncoderModel", "tokenizer_3": "T5Tokenizer"}

    def shape(self, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> PipelineShape:
        names = (
            "sample_size", "patch_size", "in_channels", "num_layers", "attention_head_dim", "num_attention_heads",
            "pos_embed_max_size",
        )  # fmt: skip
        side, patch, channels, layers, head, heads, grid = (
            whole(transformer, name, low=1, high=SIZE) for name in names
        )
        latents = whole(vae, "latent_channels", low=1, high=SIZE)
        if latents != channels:
            raise ValueError(f"the transformer has in_channels {channels}, the decoder latent_channels {latents}")
        scale = decoder_scale(vae)
        return PipelineShape(
            layers=layers,
            state_shape=(channels, side, side),
            width=head * heads,
            default_picture_size=side * scale,
            pixels_per_latent=scale,
            patch_size=patch,
            position_grid_side_tokens=grid,
            guidance_kind="classifier-free",
        )

    def prompt_tokens(self, path: Path) -> int:
        clip = read_json(path / "tokenizer" / "tokenizer_config.json")
        return whole(clip, "model_max_length", low=1, high=SIZE) + T5_TOKENS

    def sigmas(self, steps: int) -> None:
        return None

    def embed(self, pipe: Any, text: str) -> Conditions:
        tokens, _, pooled, _ = pipe.encode_prompt(text, None, None, do_classifier_free_guidance=False)
        return tokens, pooled

    def velocity(
        self,
        transformer: Any,
        x: Float[Tensor, "n c h w"],
        t: Float[Tensor, " n"],
        conditions: Conditions,
        guidance: float,
    ) -> Float[Tensor, "n c h w"]:
        tokens, pooled = conditions
        return transformer(
            hidden_states=x, timestep=t, encoder_hidden_states=tokens, pooled_projections=pooled, return_dict=False
        )[0]
