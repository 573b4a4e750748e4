"""Train a packaged model: a decoder with random weights, on demonstrations of its task.

`make model` runs `python -m tools.packaged_model tools/calculator_model.toml DIRECTORY`; `make hinted_sums` makes the
model of that task from tools/hinted_sums_model.toml.
"""

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from groupwise.config.recipe_toml import read
from groupwise.data import WRITTEN, Batch, Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.learner import AdamW, Learner, make_plan
from groupwise.methods import sft
from groupwise.models import Decoder, DecoderShape, Tokenizer, write_model
from groupwise.tasks import END, calculator_tokenizer, demonstrations, hinted_demonstrations

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
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
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
        hidden_size=recipe.hidden_size,
        layers=recipe.layers,
        heads=recipe.heads,
        kv_heads=recipe.kv_heads,
        head_dim=recipe.head_dim,
        mlp_width=recipe.mlp_width,
        max_positions=recipe.max_positions,
        model_family="qwen3",
        qk_norm=True,
        tied_embeddings=True,
    )
    decoder = Decoder.new(shape, recipe.seed)
    learner = Learner(decoder, optimizer=recipe.optimizer, steps=recipe.steps)
    pairs = iter(PAIRS[recipe.task](recipe.seed, recipe.steps * recipe.demonstrations))
    for step in range(recipe.steps):
        batch = batch_of(tokenizer, islice(pairs, recipe.demonstrations))
        (plan,) = make_plan(
            batch, size=len(batch), shuffle="prompts", permutation=range, microbatch_tokens=recipe.microbatch_tokens
        )
        result = learner.step(batch, plan, sft().objective)
        if step % 50 == 0 or step == recipe.steps - 1:
            print(f"{step:>6}/{recipe.steps}  loss {result.loss:.4f}", flush=True)
    return decoder, tokenizer


def batch_of(tokenizer: Tokenizer, pairs: Pairs) -> Batch:
    """Prompts and their answers as a batch with advantage 1. An answer ends with the end token."""

    def rollout(i: int, prompt: str, answer: str) -> Rollout:
        context, tokens = tokenizer.encode(prompt), (*tokenizer.encode(answer), *tokenizer.eos_ids)
        n = len(tokens)
        sample = Sample(context=context, stream=(0,), limit=n, finish=Finish.stop)
        sample = sample.with_tokens(tokens, (WRITTEN,) * n, (math.nan,) * n)
        return Rollout(Draw(i, Prompt(str(i), context), 1), (sample.with_verdict(Verdict(Outcome.correct)),))

    batch = pack([rollout(i, *pair) for i, pair in enumerate(pairs)])
    return batch.having(advantage=torch.ones(batch.tokens, dtype=torch.float64))


def main(recipe: str, out: str) -> None:
    torch.set_num_threads(1)
    decoder, tokenizer = train(read(PackagedModel, Path(recipe)))
    write_model(decoder, Path(out), tokenizer=tokenizer)
    print(f"{sum(p.numel() for p in decoder.parameters()):,} parameters in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
