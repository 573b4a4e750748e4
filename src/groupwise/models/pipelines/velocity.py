"""`PipelineVelocity`: the guided velocity of a pipeline's transformer; and the frozen parts around it."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from groupwise.models.flow.actions import Pixels
from groupwise.models.pipelines.prompts import prompt_text
from groupwise.models.transformers_files import quiet

__all__ = ["Frozen", "PipelineVelocity"]

CACHED = 128
"""The number of prompts whose embeddings are kept."""
Conditions = tuple[Tensor, Tensor]
"""The embeddings of a prompt: of its tokens [1, tokens, width], and pooled [1, width]."""


class Frozen:
    """The parts of a pipeline that no run trains or saves: text encoders, scheduler and decoder.

    Copies of a policy share them. Each prompt is embedded alone, so its embeddings do not depend on other prompts.
    `tokens` is the number of the transformer's tokens of a picture, by which some schedulers shift their times.
    """

    def __init__(self, pipe: Any, tokens: int) -> None:
        self.pipe, self.tokens = pipe, tokens
        self.conditions = lru_cache(CACHED)(self._conditions)
        self.times = lru_cache(self._times)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Frozen":
        return self

    @torch.no_grad()
    def _conditions(self, text: str) -> Conditions:
        """The embeddings of a prompt."""
        with quiet(), quiet("diffusers"):  # CLIP reads the first 77 tokens only
            tokens, _, pooled, _ = self.pipe.encode_prompt(text, None, None, do_classifier_free_guidance=False)
        return tokens, pooled

    def _times(self, steps: int) -> tuple[float, ...]:
        """The times of the pipeline's scheduler, as the pipeline sets them: shift and last time are its own."""
        scheduler, shift = self.pipe.scheduler, {}
        if (config := scheduler.config).use_dynamic_shifting:
            rise = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
            shift = {"mu": config.base_shift + rise * (self.tokens - config.base_image_seq_len)}
        scheduler.set_timesteps(steps, **shift)
        return tuple(scheduler.sigmas.tolist())

    @torch.no_grad()
    def picture(self, state: Float[Tensor, "c h w"]) -> Pixels:
        """The decoded picture of a state, alone: [rows, columns, 3]."""
        vae = self.pipe.vae
        latents = state[None].to(vae.dtype) / vae.config.scaling_factor + vae.config.shift_factor
        shares = self.pipe.image_processor.postprocess(vae.decode(latents, return_dict=False)[0], output_type="np")[0]
        return (shares * 255).round().astype(np.uint8)


class PipelineVelocity(nn.Module):
    """`u + guidance * (v - u)`: v is the transformer's velocity for the prompt, u that for the empty prompt.

    States and velocities have the dtype of `x`, at least float32; the transformer computes in that of its weights.
    """

    def __init__(self, frozen: Frozen, guidance: float) -> None:
        super().__init__()
        self.transformer, self.frozen, self.guidance = frozen.pipe.transformer, frozen, guidance

    def forward(
        self, x: Float[Tensor, "n c h w"], t: Float[Tensor, " n"], words: Int[Tensor, "n places"]
    ) -> Float[Tensor, "n c h w"]:
        texts = [prompt_text(row) for row in words.tolist()]
        velocity = self._velocity(x, t, texts)
        if self.guidance == 1:
            return velocity
        empty = self._velocity(x, t, [""] * len(texts))
        return empty + self.guidance * (velocity - empty)

    def _velocity(self, x: Tensor, t: Tensor, texts: list[str]) -> Tensor:
        weight, scale = next(self.transformer.parameters()), self.frozen.pipe.scheduler.config.num_train_timesteps
        tokens, pooled = zip(*map(self.frozen.conditions, texts))
        out = self.transformer(
            hidden_states=x.to(weight.dtype),
            timestep=t * scale,
            encoder_hidden_states=torch.cat(tokens).to(weight),
            pooled_projections=torch.cat(pooled).to(weight),
            return_dict=False,
        )
        return out[0].to(x.dtype)
