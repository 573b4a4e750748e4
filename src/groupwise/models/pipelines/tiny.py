"""Writes a tiny pipeline of diffusers with random weights: 16x16 pictures by a Stable Diffusion 3 of 78,000 weights.

`python -m groupwise.models.pipelines.tiny DIRECTORY` needs diffusers. Its CLIP tokenizers know the
letters a to z and the digits; it has no T5. Nothing is fetched.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from groupwise.models.transformers_files import quiet

__all__ = ["write_tiny_pipeline"]

LENGTH = 32
"""The most tokens of a prompt that CLIP reads."""


def write_tiny_pipeline(directory: Path) -> None:
    """Write the pipeline. Equal bits at each call."""
    with quiet(), quiet("diffusers"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tiny_pipeline(directory / "tokenizer").save_pretrained(directory)


def tiny_pipeline(tokenizer: Path) -> Any:
    """The pipeline of diffusers. Its tokenizer is written to a directory."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    diffusers: Any = import_module("diffusers")

    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=64,
        pos_embed_max_size=16,
    )  # fmt: skip
    torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)  # zero in a fresh one
    text = CLIPTextConfig(
        vocab_size=74, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        projection_dim=32, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(8, 8), layers_per_block=1, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=2,
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5305, sample_size=16,
    )  # fmt: skip
    encoders = [CLIPTextModelWithProjection(text) for _ in range(2)]
    clip = clip_tokenizer(tokenizer)
    parts: dict[str, Any] = {"text_encoder": encoders[0], "text_encoder_2": encoders[1], "tokenizer": clip}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=scheduler, vae=vae, tokenizer_2=clip, text_encoder_3=None, tokenizer_3=None,
        **parts,
    )  # fmt: skip


def clip_tokenizer(directory: Path, length: int = LENGTH) -> Any:
    """A CLIP tokenizer without merges: each letter and digit is a token, another one at the end of a word."""
    from transformers import CLIPTokenizer

    characters = [*map(chr, range(97, 123)), *map(str, range(10))]
    tokens = ["<|startoftext|>", "<|endoftext|>", *characters, *(f"{c}</w>" for c in characters)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return CLIPTokenizer.from_pretrained(directory, model_max_length=length)


if __name__ == "__main__":
    write_tiny_pipeline(Path(sys.argv[1]))
