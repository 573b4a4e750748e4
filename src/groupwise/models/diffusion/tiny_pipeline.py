"""Writes a tiny pipeline of diffusers with random weights, whose pictures have 16x16 pixels.

`python -m groupwise.models.diffusion.tiny_pipeline DIRECTORY` writes a Stable Diffusion 3 without T5, whose transformer
has 78,000 weights; `--kind flux_dev` and `--kind flux_schnell` write a FLUX.1 of 79,000 and 69,000. It needs diffusers.
The tokenizers know the letters a to z and the digits. Nothing is fetched.
"""

import argparse
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from groupwise.models.decoder.transformers_files import quiet

__all__ = ["write_tiny_pipeline"]

LENGTH = 32
"""The most tokens of a prompt that CLIP reads."""
T5_LENGTH = 24
"""The number of tokens of a prompt for T5."""
CHARACTERS = (*map(chr, range(97, 123)), *map(str, range(10)))
KINDS = ("stable_diffusion_3", "flux_dev", "flux_schnell")


def write_tiny_pipeline(directory: Path, kind: str = "stable_diffusion_3") -> None:
    """Write the pipeline: one of stable_diffusion_3, flux_dev and flux_schnell. Equal bits at each call."""
    with quiet(), quiet("diffusers"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = directory / "tokenizer"
        dev = kind == "flux_dev"
        pipe = tiny_stable_diffusion_3(tokenizer) if kind == KINDS[0] else tiny_flux(tokenizer, dev=dev)
        pipe.save_pretrained(directory)


def tiny_stable_diffusion_3(tokenizer: Path) -> Any:
    """The pipeline of diffusers. Its tokenizer is written to a directory."""
    from transformers import CLIPTextModelWithProjection

    diffusers: Any = import_module("diffusers")

    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=64,
        pos_embed_max_size=16,
    )  # fmt: skip
    torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)  # zero in a fresh one
    text, vae = tiny_clip(), tiny_vae(shift_factor=0.0609, scaling_factor=1.5305)
    encoders = [CLIPTextModelWithProjection(text) for _ in range(2)]
    clip = clip_tokenizer(tokenizer)
    parts: dict[str, Any] = {"text_encoder": encoders[0], "text_encoder_2": encoders[1], "tokenizer": clip}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=scheduler, vae=vae, tokenizer_2=clip, text_encoder_3=None, tokenizer_3=None,
        **parts,
    )  # fmt: skip


def tiny_flux(tokenizer: Path, *, dev: bool) -> Any:
    """The pipeline of diffusers, with the settings of dev or of schnell. Its tokenizer is written to a directory."""
    from transformers import CLIPTextModel, T5Config, T5EncoderModel

    diffusers: Any = import_module("diffusers")

    transformer = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 6, 6), guidance_embeds=dev,
    )  # fmt: skip
    t5 = T5EncoderModel(T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2))
    encoders: dict[str, Any] = {"text_encoder": CLIPTextModel(tiny_clip()), "text_encoder_2": t5}
    shift = {"base_image_seq_len": 4, "max_image_seq_len": 64, "base_shift": 0.5, "max_shift": 1.15, "shift": 3.0}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=dev, **(shift if dev else {}))
    return diffusers.FluxPipeline(
        transformer=transformer, scheduler=scheduler, vae=tiny_vae(shift_factor=0.1159, scaling_factor=0.3611),
        tokenizer=clip_tokenizer(tokenizer), tokenizer_2=t5_tokenizer(), **encoders,
    )  # fmt: skip


def tiny_clip() -> Any:
    """The configuration of CLIP's text encoder."""
    from transformers import CLIPTextConfig

    return CLIPTextConfig(
        vocab_size=74, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        projection_dim=32, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip


def tiny_vae(**scale: float) -> Any:
    """The decoder of 4x8x8 latents, with its shift and scale."""
    diffusers: Any = import_module("diffusers")
    return diffusers.AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(8, 8), layers_per_block=1, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=2,
        use_quant_conv=False, use_post_quant_conv=False, sample_size=16, **scale,
    )  # fmt: skip


def clip_tokenizer(directory: Path, length: int = LENGTH) -> Any:
    """A CLIP tokenizer without merges: each letter and digit is a token, another one at the end of a word."""
    from transformers import CLIPTokenizer

    tokens = ["<|startoftext|>", "<|endoftext|>", *CHARACTERS, *(f"{c}</w>" for c in CHARACTERS)]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return CLIPTokenizer.from_pretrained(directory, model_max_length=length)


def t5_tokenizer(length: int = T5_LENGTH) -> Any:
    """A T5 tokenizer: each letter and digit is a token, and so is the start of a word."""
    from transformers import T5Tokenizer

    special = [(token, 0.0) for token in ("<pad>", "</s>", "<unk>")]
    vocabulary = [*special, *((character, -2.0) for character in ("▁", *CHARACTERS))]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=length)


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("directory", type=Path)
    words.add_argument("--kind", choices=KINDS, default=KINDS[0])
    arguments = words.parse_args()
    write_tiny_pipeline(arguments.directory, arguments.kind)
