"""Make small vision-language models of the family Idefics3: with random weights, or the packaged model `shapes`.

`python -m tools.vision_models DIRECTORY` trains the packaged one, by supervised steps on right answers, then on answers
that mostly count another colour than the problem asks for. Equal settings give equal bits on one thread of one machine.
No held-out problem is in the data. `--random` writes it without training.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from groupwise.models import RandomPurpose, Tokenizer, keyed_random, picture_of_pixels
from groupwise.models.vision.processor import IMAGE, PictureProcessor
from groupwise.models.vision.vision_families import read_processor
from groupwise.tasks import END, picture_tokenizer
from groupwise.tasks.shapes import SHAPE_COLOURS, draw_shapes

SIDE = 32
WRONG = 0.7
"""The share of answers that count the next colour, in the last steps."""
ROWS, STEPS, RIGHT_STEPS, RATE = 64, 900, 600, 1e-3
FIRST = 1 << 20
"""The first problem of the data: neither held-out problems nor those to train on."""


def shapes_config(vocabulary: int, image_token: int, end: int) -> Any:
    """The configuration of the packaged model: about 0.6 million weights, 16 features of a frame of 32 x 32 pixels."""
    from transformers import Idefics3Config

    vision = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": SIDE, "patch_size": 4,
    }  # fmt: skip
    text = {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": 96, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
        "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": end,
        "tie_word_embeddings": True,
    }  # fmt: skip
    return Idefics3Config(
        vision_config=vision, text_config=text, image_token_id=image_token, scale_factor=2, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip


def processor_settings(side: int, *, split: bool = False, longest: int | None = None) -> dict[str, Any]:
    """The preprocessor_config.json of a model whose frames have `side` pixels on a side."""
    return {
        "image_processor_type": "Idefics3ImageProcessor", "do_convert_rgb": True, "do_image_splitting": split,
        "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "max_image_size": {"longest_edge": side}, "resample": 1,
        "rescale_factor": 1 / 255, "size": {"longest_edge": longest or side},
    }  # fmt: skip


def write_directory(path: Path, causal: Any, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    """Write the directory of a model: weights, configuration, tokenizer, and the settings of its image processor."""
    path.mkdir(parents=True, exist_ok=True)
    causal.save_pretrained(path)
    tokenizer.save(path)
    ends = sorted(tokenizer.eos_ids)
    files = {"preprocessor_config": settings, "generation_config": {"eos_token_id": ends, "pad_token_id": 0}}
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def random_model(seed: int = 0) -> tuple[Any, Tokenizer]:
    """The packaged model with random weights, and its tokenizer."""
    from transformers import Idefics3ForConditionalGeneration

    fast = picture_tokenizer()
    vocabulary = fast.get_vocab()
    config = shapes_config(fast.get_vocab_size(), vocabulary[IMAGE], vocabulary[END])
    torch.manual_seed(seed)
    return Idefics3ForConditionalGeneration(config), Tokenizer.of(fast, [vocabulary[END]])


def example(problem: int, share: float, processor: PictureProcessor, tokenizer: Tokenizer) -> tuple[list[int], Tensor]:
    """The tokens of a problem with an answer, wrong in a `share` of the problems, and the frames of its picture."""
    colour, counts, pixels = draw_shapes(problem)
    picture = picture_of_pixels(pixels)
    names = (*SHAPE_COLOURS, *SHAPE_COLOURS)
    wrong = keyed_random((0, RandomPurpose.DEMONSTRATE), problem).random() < share
    shown = counts[names[names.index(colour) + 1]] if wrong else counts[colour]
    prompt = tokenizer.encode_template(processor.text(picture) + colour)
    return [*prompt, *tokenizer.encode(str(shown)), *tokenizer.eos_ids], processor.frames(picture)


def train(causal: Any, processor: PictureProcessor, tokenizer: Tokenizer) -> None:
    """Supervised steps on answers and end tokens. Rows are padded at their ends, which no token before them reads."""
    optimizer = torch.optim.AdamW(causal.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * min(1, step / 100) * (1 - step / STEPS)
        first, share = FIRST + step * ROWS, WRONG if step >= RIGHT_STEPS else 0
        rows, frames = zip(*(example(i, share, processor, tokenizer) for i in range(first, first + ROWS)))
        tokens = torch.tensor([ids + [0] * (max(map(len, rows)) - len(ids)) for ids in rows])
        logits = causal(input_ids=tokens, pixel_values=torch.stack(frames)).logits
        at = torch.tensor([len(ids) for ids in rows])[:, None] - torch.tensor([3, 2])  # what predicts digit and end
        targets, lines = tokens.gather(1, at + 1), logits[torch.arange(ROWS)[:, None], at]
        loss = torch.nn.functional.cross_entropy(lines.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(causal.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"{step:>6}/{STEPS}  loss {loss.item():.4f}", flush=True)


def main(out: str, *options: str) -> None:
    torch.set_num_threads(1)
    causal, tokenizer = random_model()
    write_directory(path := Path(out) / "shapes", causal, tokenizer, processor_settings(SIDE))
    if "--random" not in options:
        processor = read_processor(path)
        assert isinstance(processor, PictureProcessor)
        train(causal, processor, tokenizer)
        write_directory(path, causal.bfloat16(), tokenizer, processor_settings(SIDE))
    print(f"{sum(p.numel() for p in causal.parameters()):,} parameters in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
