"""`PipelineVelocity`: the guided velocity of a pipeline's transformer; and the frozen parts around it."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.models.decoder.transformers_files import quiet
from groupwise.models.diffusion.pipeline_family import Conditions, PipelineFamily
from groupwise.models.diffusion.prompt_bytes import prompt_text
from groupwise.models.diffusion.scheduler_settings import shift_of_tokens
from groupwise.models.flow.denoising_actions import Pixels

__all__ = ["FrozenDiffusersParts", "PipelineVelocity"]

CACHED = 128
"""The number of prompts whose embeddings are kept."""


class FrozenDiffusersParts:
    """The parts of a pipeline that no run trains or saves: text encoders, scheduler and decoder.

    Copies of a policy share them. Each prompt is embedded alone, so its embeddings do not depend on other prompts.
    `tokens` is the number of the transformer's tokens of a picture, by which some schedulers shift their times.
    """

    def __init__(self, family: PipelineFamily, pipe: Any, tokens: int) -> None:
        self.family, self.pipe, self.tokens = family, pipe, tokens
        self.conditions = lru_cache(CACHED)(self._conditions)
        self.times = lru_cache(self._times)

    def __deepcopy__(self, metadata: dict[int, Any]) -> "FrozenDiffusersParts":
        return self

    @torch.no_grad()
    def _conditions(self, text: str) -> Conditions:
        """The embeddings of a prompt."""
        with quiet(), quiet("diffusers"):  # CLIP reads the first 77 tokens only
            return self.family.embed(self.pipe, text)

    def _times(self, steps: int) -> tuple[float, ...]:
        """The times of the pipeline's scheduler, as the pipeline sets them: shift and last time are its own."""
        scheduler, shift = self.pipe.scheduler, {}
        if scheduler.config.use_dynamic_shifting:
            shift = {"mu": shift_of_tokens(scheduler.config, self.tokens)}
        scheduler.set_timesteps(steps, sigmas=self.family.sigmas(steps), **shift)
        return tuple(scheduler.sigmas.tolist())

    @torch.no_grad()
    def picture(self, state: Float[Tensor, "c h w"]) -> Pixels:
        """The decoded picture of a state, alone: [rows, columns, 3]."""
        vae = self.pipe.vae
        latents = state[None].to(vae.dtype) / vae.config.scaling_factor + vae.config.shift_factor
        shares = self.pipe.image_processor.postprocess(vae.decode(latents, return_dict=False)[0], output_type="np")[0]
        return (shares * 255).round().astype(np.uint8)


class PipelineVelocity(nn.Module):
    """The guided velocity of a pipeline's transformer: with classifier-free guidance `u + guidance * (v - u)`.

    States and velocities have the dtype of `x`, at least float32; the transformer computes in the dtype of its weights.
    """

    def __init__(self, frozen: FrozenDiffusersParts, guidance: float, twice: bool) -> None:
        super().__init__()
        self.transformer, self.frozen, self.guidance, self.twice = frozen.pipe.transformer, frozen, guidance, twice

    def recompute(self) -> None:
        """Forward each block again in the backward pass, instead of storing its activations."""
        self.transformer.enable_gradient_checkpointing()

    def forward(
        self, x: Float[Tensor, "n c h w"], t: Float[Tensor, " n"], words: Int[Tensor, "n prompt_length"]
    ) -> Float[Tensor, "n c h w"]:
        texts = [prompt_text(row) for row in words.tolist()]
        velocity = self._velocity(x, t, texts)
        if not self.twice or self.guidance == 1:
            return velocity
        empty = self._velocity(x, t, [""] * len(texts))
        return empty + self.guidance * (velocity - empty)

    def _velocity(self, x: Tensor, t: Tensor, texts: list[str]) -> Tensor:
        weight, scale = next(self.transformer.parameters()), self.frozen.pipe.scheduler.config.num_train_timesteps
        tokens, pooled = (torch.cat(rows).to(weight) for rows in zip(*map(self.frozen.conditions, texts)))
        family, latents = self.frozen.family, x.to(weight.dtype)
        return family.velocity(self.transformer, latents, t * scale, (tokens, pooled), self.guidance).to(x.dtype)
