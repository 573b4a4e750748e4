"""Tiny vision-language models with random weights, written as directories, and pictures of noise."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from tools.vision_models import processor_settings, write_directory

from groupwise.data import Picture
from groupwise.models import Tokenizer, VisionModel, picture_of_pixels, read_model, read_tokenizer
from groupwise.tasks import END, picture_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
"""A chat template in the manner of SmolVLM's."""


def tiny_config(family: str, *, image_token: int, vocabulary: int, end: int) -> Any:
    """A configuration with about 20,000 weights: frames of 16 x 16 pixels, four features each."""
    from transformers import Idefics3Config, SmolVLMConfig

    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    text = {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": end,
    }  # fmt: skip
    config = {"idefics3": Idefics3Config, "smolvlm": SmolVLMConfig}[family]
    return config(
        vision_config=vision, text_config=text, image_token_id=image_token, scale_factor=2, pad_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip


@cache
def vision_directory(family: str = "idefics3", *, split: bool = False) -> Path:
    """A directory of a random model. With `split`, a picture has up to four parts and the whole as frames."""
    import transformers

    fast = picture_tokenizer()
    fast.add_special_tokens([f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)])
    vocabulary = fast.get_vocab()
    tokenizer = Tokenizer.of(fast, [vocabulary[END]])
    tokenizer = Tokenizer(
        tokenizer.tokenizer_json, tokenizer.eos_ids,
        (*tokenizer.extra_files, ("chat_template.jinja", TEMPLATE.encode())),
    )  # fmt: skip
    torch.manual_seed(0)
    config = tiny_config(family, image_token=vocabulary["<image>"], vocabulary=len(vocabulary), end=vocabulary[END])
    causal = transformers.AutoModelForImageTextToText.from_config(config)
    for weight in causal.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    path = Path(mkdtemp()) / family
    write_directory(path, causal, tokenizer, processor_settings(16, split=split, longest=32 if split else 16))
    return path


def noise(seed: int, *, width: int = 16, height: int = 16) -> Picture:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return picture_of_pixels(pixels)


def tiny_vision(
    family: str = "idefics3", *, dtype: torch.dtype = torch.float64, split: bool = False
) -> tuple[VisionModel, Tokenizer]:
    """A random model, and its tokenizer."""
    path = vision_directory(family, split=split)
    model = read_model(path, dtype=dtype)
    assert isinstance(model, VisionModel)
    return model, read_tokenizer(path)
