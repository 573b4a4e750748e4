"""Train a packaged model: a decoder with random weights, after the supervised phase of a warm start.

`make model` runs `python -m tools.packaged_model tools/calculator_model.toml DIRECTORY`; `make hinted_sums` makes the
model of that task from tools/hinted_sums_model.toml.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from groupwise.config.recipe_toml import read
from groupwise.learner import AdamW, Learner
from groupwise.models import Decoder, DecoderShape, Tokenizer, write_model
from groupwise.tasks import END, Demonstration, calculator_tokenizer, demonstrations, hinted_demonstrations
from groupwise.training.warm_start import supervised_steps

Pairs = Iterable[tuple[str, str]]
"""Prompts and their answers."""


def calculator_pairs(seed: int, count: int) -> Pairs:
    """Problems and right answers. A third of them write their steps; the others guess at once."""
    return demonstrations(seed, count, chain_share=0.35)


def hinted_sums_pairs(seed: int, count: int) -> Pairs:
    """Prompts of all forms and their answers."""
    return ((row["prompt"], row["answer"]) for row in hinted_demonstrations(count, seed))


PAIRS: dict[str, Callable[[int, int], Pairs]] = {"calculator": calculator_pairs, "hinted_sums": hinted_sums_pairs}
"""The demonstrations of each task with a packaged model: a function of a seed and a number of pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """The settings. Each of the `steps` trains on `demonstrations` new demonstrations of the task."""

    task: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    positions: int
    steps: int
    demonstrations: int
    optimizer: AdamW
    seed: int = 0
    microbatch_tokens: int = 16384


def train(recipe: PackagedModel) -> tuple[Decoder, Tokenizer]:
    """The model after all steps. Equal settings give equal bits on one thread."""
    fast = calculator_tokenizer()
    tokenizer = Tokenizer.of(fast, [fast.get_vocab()[END]])
    shape = DecoderShape(
        vocabulary_size=fast.get_vocab_size(),
        hidden_size=recipe.width,
        layers=recipe.layers,
        heads=recipe.heads,
        kv_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        mlp_width=recipe.mlp_width,
        max_positions=recipe.positions,
        model_family="qwen3",
        qk_norm=True,
        tied_embeddings=True,
    )
    decoder = Decoder.new(shape, recipe.seed)
    learner = Learner(decoder, optimizer=recipe.optimizer, steps=recipe.steps)
    pairs = PAIRS[recipe.task](recipe.seed, recipe.steps * recipe.demonstrations)
    examples = [
        Demonstration(tokenizer.encode(prompt), (*tokenizer.encode(answer), *tokenizer.eos_ids))
        for prompt, answer in pairs
    ]
    size = {"per_step": recipe.demonstrations, "microbatch_tokens": recipe.microbatch_tokens}
    for step, result in enumerate(
        supervised_steps(learner, examples, order=lambda epoch: range(len(examples)), **size)
    ):
        if step % 50 == 0 or step == recipe.steps - 1:
            print(f"{step:>6}/{recipe.steps}  loss {result.loss:.4f}", flush=True)
    return decoder, tokenizer


def main(recipe: str, out: str) -> None:
    torch.set_num_threads(1)
    decoder, tokenizer = train(read(PackagedModel, Path(recipe)))
    write_model(decoder, Path(out), tokenizer=tokenizer)
    print(f"{sum(p.numel() for p in decoder.parameters()):,} parameters in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
