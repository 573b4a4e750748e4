"""Train the packaged flow models: flow matching on data whose captions are often wrong.

`make flow` runs `python -m tools.flow_models DIRECTORY`. Equal settings give equal bits on one thread of one machine.
The wrong captions are what reinforcement learning then corrects. No held-out quilt or glyph is in the data.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from groupwise.models import FlowPolicy, FlowShape, Tokenizer, write_model
from groupwise.models.flow.denoising_settings import MOST_STEPS
from groupwise.tasks import (
    DIRECTIONS,
    END,
    GLYPH_COLOURS,
    GLYPH_RELATIONS,
    GLYPH_SHAPE,
    QUILT_COLOURS,
    QUILT_SHAPE,
    flow_tokenizer,
)
from groupwise.tasks.glyphs import glyph_split
from groupwise.tasks.quilts import quilt_split
from groupwise.tasks.rings import ring_centre


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowModel:
    """A packaged model: its prompts as rows of words, the data of these rows, and the settings of its training.

    A share `wrong` of the words in captions is replaced by random ones. `spread` is the noise of the data.
    """

    words: tuple[str, ...]
    prompts: tuple[str, ...]
    data: Callable[[Tensor], Tensor]
    state: tuple[int, ...]
    width: int
    wrong: float
    spread: float
    rows: int
    steps: int = 2000
    rate: float = 2e-3
    layers: int = 2
    seed: int = 0


def ring_points(words: Tensor) -> Tensor:
    """The points of directions: [n, 1] words to [n, 2] states."""
    return torch.tensor([ring_centre(d) for d in DIRECTIONS])[words[:, 0]]


def quilt_pictures(words: Tensor) -> Tensor:
    """The pictures of four colours: [n, 4] words to [n, 3, 8, 8] states from -1 to 1."""
    channels = torch.nn.functional.one_hot(words, len(QUILT_COLOURS))[..., 1:].float() * 2 - 1
    patches = channels.permute(0, 2, 1).reshape(-1, 3, 2, 2)
    return patches.repeat_interleave(QUILT_SHAPE[1] // 2, 2).repeat_interleave(QUILT_SHAPE[2] // 2, 3)


def glyph_pictures(words: Tensor) -> Tensor:
    """The pictures of colour, relation and colour: [n, 3] words to [n, 3, 8, 8] states; free coordinates are random."""
    n, half = len(words), GLYPH_SHAPE[1] // 2
    step = torch.tensor(list(GLYPH_RELATIONS.values()))[words[:, 1] - len(GLYPH_COLOURS)]
    free = torch.randint(2, (2, n, 2))
    first = torch.where(step == 0, free[0], (step < 0).long())
    second = torch.where(step == 0, free[1], (step > 0).long())
    light = torch.zeros(n, 2, 2, GLYPH_SHAPE[0])
    for cell, word in ((first, words[:, 0]), (second, words[:, 2])):
        light[torch.arange(n), cell[:, 0], cell[:, 1]] = torch.tensor(list(GLYPH_COLOURS.values())).float()[word]
    return (light.permute(0, 3, 1, 2) * 2 - 1).repeat_interleave(half, 2).repeat_interleave(half, 3)


MODELS = {
    "rings": FlowModel(
        words=DIRECTIONS, prompts=DIRECTIONS, data=ring_points, state=(2,), width=64, wrong=0.5, spread=0.15, rows=256
    ),
    "quilts": FlowModel(
        words=QUILT_COLOURS, prompts=quilt_split()[0], data=quilt_pictures, state=QUILT_SHAPE, width=128, wrong=0.25,
        spread=0.05, rows=128,
    ),
    "glyphs": FlowModel(
        words=(*GLYPH_COLOURS, *GLYPH_RELATIONS), prompts=glyph_split()[0], data=glyph_pictures, state=GLYPH_SHAPE,
        width=128, wrong=0.04, spread=0.05, rows=128,
    ),
}  # fmt: skip


def train(model: FlowModel) -> tuple[FlowPolicy, Tokenizer]:
    """The policy after all steps, and its tokenizer."""
    torch.set_num_threads(1)
    torch.manual_seed(model.seed)
    table = torch.tensor([[model.words.index(word) for word in prompt.split()] for prompt in model.prompts])
    shape = FlowShape(
        vocabulary_size=MOST_STEPS + 1 + len(model.words), layers=model.layers, state_shape=model.state,
        prompt_vocabulary=len(model.words), prompt_length=table.shape[1], width=model.width,
    )  # fmt: skip
    policy, n = FlowPolicy(shape), model.rows
    optimizer = torch.optim.AdamW(policy.parameters(), lr=model.rate)
    for step in range(model.steps):
        optimizer.param_groups[0]["lr"] = model.rate * (1 - step / model.steps)
        true = table[torch.randint(len(table), (n,))]
        wrong = torch.rand(true.shape) < model.wrong
        words = torch.where(wrong, torch.randint(shape.prompt_vocabulary, true.shape), true)
        data = model.data(true) + model.spread * torch.randn(n, *model.state)
        noise, times = torch.randn(n, *model.state), torch.rand(n)
        now = times.view(-1, *(1,) * len(model.state))
        velocity = policy.velocity((1 - now) * data + now * noise, times, words + MOST_STEPS + 1)
        loss = (velocity - (noise - data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fast = flow_tokenizer(model.words, MOST_STEPS)
    return policy, Tokenizer.of(fast, [fast.get_vocab()[END]])


if __name__ == "__main__":
    for name, settings in MODELS.items():
        trained, tokenizer = train(settings)
        write_model(trained, Path(sys.argv[1]) / name, tokenizer=tokenizer)
