"""Write a directory with the sizes of Stable Diffusion 3.5 medium and no weights, to plan the memory of a run.

`python -m tools.hollow_pipeline DIRECTORY` needs diffusers. The files of weights are sparse: they have headers and the
length of the real ones, and take no disk. The sizes are those of the published configurations, written from memory.
"""

import json
import struct
import sys
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from groupwise.models.pipelines.tiny import clip_tokenizer

PARTS = {
    "transformer": ("diffusers", "SD3Transformer2DModel"), "vae": ("diffusers", "AutoencoderKL"),
    "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler"),
    "text_encoder": ("transformers", "CLIPTextModelWithProjection"), "tokenizer": ("transformers", "CLIPTokenizer"),
    "text_encoder_2": ("transformers", "CLIPTextModelWithProjection"), "tokenizer_2": ("transformers", "CLIPTokenizer"),
    "text_encoder_3": ("transformers", "T5EncoderModel"), "tokenizer_3": ("transformers", "T5TokenizerFast"),
}  # fmt: skip


def write_hollow_pipeline(directory: Path) -> None:
    """Write configurations, and files of weights without weights."""
    for name, module in modules().items():
        (directory / name).mkdir(parents=True)
        config: Any = module.config
        config = config.to_dict() if hasattr(config, "to_dict") else dict(config)
        (directory / name / "config.json").write_text(json.dumps(config, default=list), encoding="utf-8")
        write_hollow(directory / name / "model.safetensors", module)
    for name in ("tokenizer", "tokenizer_2"):
        clip_tokenizer(directory / name, length=77).save_pretrained(directory / name)
    (directory / "tokenizer_3").mkdir()
    (directory / "scheduler").mkdir()
    (directory / "scheduler" / "scheduler_config.json").write_text('{"shift": 3.0}', encoding="utf-8")
    index = {"_class_name": "StableDiffusion3Pipeline", **PARTS}
    (directory / "model_index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def modules() -> dict[str, nn.Module]:
    """The parts with weights, on the meta device."""
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    large = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
    small = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    t5 = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}
    blocks = (128, 256, 512, 512)
    with torch.device("meta"):
        transformer = diffusers.SD3Transformer2DModel(
            num_layers=24, num_attention_heads=24, caption_projection_dim=1536, pos_embed_max_size=384,
            dual_attention_layers=tuple(range(13)), qk_norm="rms_norm",
        )  # fmt: skip
        vae = diffusers.AutoencoderKL(
            block_out_channels=blocks, down_block_types=("DownEncoderBlock2D",) * 4, latent_channels=16,
            up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, use_quant_conv=False,
            use_post_quant_conv=False, scaling_factor=1.5305, shift_factor=0.0609, sample_size=1024,
        )  # fmt: skip
        encoders = [
            CLIPTextModelWithProjection(CLIPTextConfig(projection_dim=s["hidden_size"], **s)) for s in (small, large)
        ]
        third = T5EncoderModel(T5Config(vocab_size=32128, **t5))
    return {
        "transformer": transformer,
        "vae": vae,
        "text_encoder": encoders[0],
        "text_encoder_2": encoders[1],
        "text_encoder_3": third,
    }


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
    write_hollow_pipeline(Path(sys.argv[1]))
