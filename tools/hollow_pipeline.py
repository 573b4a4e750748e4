"""Write a directory with the sizes of a published pipeline and no weights, to plan the memory of a run.

`python -m tools.hollow_pipeline DIRECTORY` has the sizes of Stable Diffusion 3.5 medium, `--kind flux_dev` those of
FLUX.1 dev. It needs diffusers. The files of weights are sparse: they have headers and the length of the real ones, and
take no disk. The sizes are those of the published configurations, written from memory.
"""

import argparse
import json
import struct
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.models.diffusion.flux import FluxFamily
from groupwise.models.diffusion.pipeline_family import PipelineFamily
from groupwise.models.diffusion.pipeline_index import OF_DIFFUSERS
from groupwise.models.diffusion.stable_diffusion_3 import StableDiffusion3Family
from groupwise.models.diffusion.tiny_pipeline import clip_tokenizer, t5_tokenizer

BLOCKS = (128, 256, 512, 512)
Sizes = dict[str, Any]
SMALL: Sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE: Sizes = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
T5: Sizes = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}


def write_hollow_pipeline(directory: Path, kind: str = "stable_diffusion_3") -> None:
    """Write configurations, and files of weights without weights."""
    with torch.device("meta"):
        modules, scheduler = flux_dev() if kind == "flux_dev" else stable_diffusion_3()
    family: PipelineFamily = FluxFamily() if kind == "flux_dev" else StableDiffusion3Family()
    for name, module in modules.items():
        (directory / name).mkdir(parents=True)
        config: Any = module.config
        config = config.to_dict() if hasattr(config, "to_dict") else dict(config)
        (directory / name / "config.json").write_text(json.dumps(config, default=list), encoding="utf-8")
        write_hollow(directory / name / "model.safetensors", module)
    parts = {**family.required_parts, **family.optional_parts}
    for name, tokenizer in parts.items():
        if tokenizer == "CLIPTokenizer":
            clip_tokenizer(directory / name, length=77).save_pretrained(directory / name)
        elif tokenizer == "T5Tokenizer":
            t5_tokenizer(length=512).save_pretrained(directory / name)
    (directory / "scheduler").mkdir()
    (directory / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler), encoding="utf-8")
    named = {name: ["diffusers" if name in OF_DIFFUSERS else "transformers", part] for name, part in parts.items()}
    index = {"_class_name": family.pipeline_class, **named}
    (directory / "model_index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def stable_diffusion_3() -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """The parts with weights of Stable Diffusion 3.5 medium, and its scheduler's settings."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    diffusers: Any = import_module("diffusers")
    transformer = diffusers.SD3Transformer2DModel(
        num_layers=24, num_attention_heads=24, caption_projection_dim=1536, pos_embed_max_size=384,
        dual_attention_layers=tuple(range(13)), qk_norm="rms_norm",
    )  # fmt: skip
    texts = (CLIPTextConfig(projection_dim=sizes["hidden_size"], **sizes) for sizes in (SMALL, LARGE))
    first, second = map(CLIPTextModelWithProjection, texts)
    parts = {"transformer": transformer, "vae": decoder(scaling_factor=1.5305, shift_factor=0.0609)}
    return {**parts, "text_encoder": first, "text_encoder_2": second, "text_encoder_3": t5()}, {"shift": 3.0}


def flux_dev() -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """The parts with weights of FLUX.1 dev, and its scheduler's settings."""
    from transformers import CLIPTextConfig, CLIPTextModel

    diffusers: Any = import_module("diffusers")
    transformer = diffusers.FluxTransformer2DModel(guidance_embeds=True)  # the other sizes are its defaults
    text = CLIPTextModel(CLIPTextConfig(projection_dim=768, **SMALL))
    parts = {"transformer": transformer, "vae": decoder(scaling_factor=0.3611, shift_factor=0.1159)}
    shift = {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15, "shift": 3.0}
    return {**parts, "text_encoder": text, "text_encoder_2": t5()}, {"use_dynamic_shifting": True, **shift}


def decoder(**scale: float) -> nn.Module:
    """A decoder of latents with 16 channels, each of 8x8 pixels."""
    diffusers: Any = import_module("diffusers")
    return diffusers.AutoencoderKL(
        block_out_channels=BLOCKS, down_block_types=("DownEncoderBlock2D",) * 4, latent_channels=16,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, use_quant_conv=False,
        use_post_quant_conv=False, sample_size=1024, **scale,
    )  # fmt: skip


def t5() -> nn.Module:
    """The encoder of T5 XXL."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=32128, **T5))


def write_hollow(file: Path, module: nn.Module) -> None:
    """Write a safetensors file of float16 tensors that has a header and no data on disk."""
    header, end = {}, 0
    for name, weight in module.named_parameters():
        start, end = end, end + 2 * prod(weight.shape)
        header[name] = {"dtype": "F16", "shape": list(weight.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as content:
        content.write(struct.pack("<Q", len(text)) + text)
        content.truncate(8 + len(text) + end)


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("directory", type=Path)
    words.add_argument("--kind", choices=("stable_diffusion_3", "flux_dev"), default="stable_diffusion_3")
    given = words.parse_args()
    write_hollow_pipeline(given.directory, given.kind)
