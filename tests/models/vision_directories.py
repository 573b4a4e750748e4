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
from groupwise.models.vision.qwen_processor import END as PICTURE_END
from groupwise.models.vision.qwen_processor import PAD, START
from groupwise.tasks import END, picture_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
"""A chat template in the manner of SmolVLM's."""
VIDEO = "<|video_pad|>"
"""A token that Qwen2.5-VL's tokenizer and configuration have for videos."""
QWEN_TEMPLATE = TEMPLATE.replace("<image>", f"{START}{PAD}{PICTURE_END}")
"""One in the manner of Qwen2.5-VL's."""


TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": None,
}  # fmt: skip
"""The sizes of a decoder with about 20,000 weights."""
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Those of one with heads of 32, which vLLM has on CPUs."""
QWEN_SETTINGS = {
    "image_processor_type": "Qwen2VLImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
    "min_pixels": 128, "max_pixels": 768,
}  # fmt: skip
"""The preprocessor_config.json of a tiny Qwen2.5-VL: 2 to 12 features of 8 x 8 pixels."""


def tiny_config(family: str, vocabulary: dict[str, int], *, wide: bool) -> Any:
    """A configuration of Idefics3 or SmolVLM: frames of 16 x 16 pixels, four features each."""
    from transformers import Idefics3Config, SmolVLMConfig

    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 4,
    }  # fmt: skip
    text = {
        **TEXT, "model_type": "llama", "head_dim": 8, "vocab_size": len(vocabulary), "eos_token_id": vocabulary[END],
        **({**WIDE, "head_dim": 32} if wide else {}),
    }  # fmt: skip
    config = {"idefics3": Idefics3Config, "smolvlm": SmolVLMConfig}[family]
    return config(
        vision_config=vision, text_config=text, image_token_id=vocabulary["<image>"], scale_factor=2, pad_token_id=0,
        tie_word_embeddings=False,
    )  # fmt: skip


def qwen_config(vocabulary: dict[str, int], *, wide: bool) -> Any:
    """A configuration of Qwen2.5-VL: windows of 16 x 16 pixels in the tower's first layer, of 24 tokens in the last."""
    from transformers import Qwen2_5_VLConfig

    vision = {
        "hidden_size": 16, "intermediate_size": 24, "depth": 2, "num_heads": 2, "patch_size": 4, "window_size": 16,
        "fullatt_block_indexes": [1], "out_hidden_size": 64 if wide else 32,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4] if wide else [2, 1, 1]}
    text = {
        **TEXT, "rope_parameters": rope, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1,
        "vocab_size": len(vocabulary), "eos_token_id": vocabulary[END],
        **({**WIDE, "use_sliding_window": False} if wide else {}),
    }  # fmt: skip
    return Qwen2_5_VLConfig(
        vision_config=vision, text_config=text, image_token_id=vocabulary[PAD], video_token_id=vocabulary[VIDEO],
        vision_start_token_id=vocabulary[START], vision_end_token_id=vocabulary[PICTURE_END],
    )  # fmt: skip


@cache
def vision_directory(family: str = "idefics3", *, split: bool = False, wide: bool = False) -> Path:
    """A directory of a random model. With `split`, a picture has up to four parts and the whole as frames.

    With `wide`, its decoder is one that vLLM has on CPUs.
    """
    import transformers

    qwen = family == "qwen2_5_vl"
    fast = picture_tokenizer()
    fast.add_special_tokens(
        [PAD, START, PICTURE_END, VIDEO] if qwen else [f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)]
    )
    vocabulary = fast.get_vocab()
    tokenizer = Tokenizer.of(fast, [vocabulary[END]])
    template = QWEN_TEMPLATE if qwen else TEMPLATE
    tokenizer = Tokenizer(
        tokenizer.tokenizer_json, tokenizer.eos_ids,
        (*tokenizer.extra_files, ("chat_template.jinja", template.encode())),
    )  # fmt: skip
    torch.manual_seed(0)
    config = qwen_config(vocabulary, wide=wide) if qwen else tiny_config(family, vocabulary, wide=wide)
    causal = transformers.AutoModelForImageTextToText.from_config(config)
    for weight in causal.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    path = Path(mkdtemp()) / family
    idefics = processor_settings(16, split=split, longest=32 if split else 16)
    write_directory(path, causal, tokenizer, QWEN_SETTINGS if qwen else idefics)
    return path


def noise(seed: int, *, width: int = 16, height: int = 16) -> Picture:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return picture_of_pixels(pixels)


def tiny_vision(
    family: str = "idefics3", *, dtype: torch.dtype = torch.float64, split: bool = False, wide: bool = False
) -> tuple[VisionModel, Tokenizer]:
    """A random model, and its tokenizer."""
    path = vision_directory(family, split=split, wide=wide)
    model = read_model(path, dtype=dtype)
    assert isinstance(model, VisionModel)
    return model, read_tokenizer(path)
