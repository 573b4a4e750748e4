"""The supervised phase that makes the packaged model: next-token loss on demonstrations, through the same learner.

`python -m groupwise.train.warm_start recipes/calculator-model.toml DIRECTORY` is what `make model` runs.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from groupwise.data import WRITTEN, Batch, Draw, Family, Finish, Outcome, Prompt, Sample, Verdict, pack
from groupwise.learner import AdamW, Learner, cut
from groupwise.models import Decoder, Shape, Tokenizer, write_model
from groupwise.objective import Objective, reinforce, token_mean
from groupwise.tasks import END, calculator_tokenizer, demonstrations
from groupwise.train.text import read

NEXT_TOKEN = Objective(surrogate=reinforce, aggregate=token_mean)
"""With an advantage of 1 on every written token, the surrogate is its log-prob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """A model made from demonstrations: most guess the answer at once, `chain_share` of them write their steps."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    positions: int
    steps: int
    demonstrations: int
    chain_share: float
    optimizer: AdamW
    seed: int = 0
    piece_tokens: int = 16384


def warm_start(recipe: WarmStart) -> tuple[Decoder, Tokenizer]:
    """The model after `steps` steps of `demonstrations` each; equal recipes give equal bits on one thread."""
    fast = calculator_tokenizer()
    tokenizer = Tokenizer.of(fast, [fast.get_vocab()[END]])
    shape = Shape(
        vocabulary=fast.get_vocab_size(),
        width=recipe.width,
        layers=recipe.layers,
        heads=recipe.heads,
        kv_heads=recipe.kv_heads,
        head_dim=recipe.width // recipe.heads,
        inner=recipe.inner,
        positions=recipe.positions,
        family="qwen3",
        qk_norm=True,
        tied=True,
    )
    decoder = Decoder.new(shape, recipe.seed)
    learner = Learner(decoder, optimizer=recipe.optimizer, steps=recipe.steps)
    pairs = demonstrations(recipe.seed, recipe.steps * recipe.demonstrations, recipe.chain_share)
    for step in range(recipe.steps):
        mine = pairs[step * recipe.demonstrations : (step + 1) * recipe.demonstrations]
        batch = written(mine, tokenizer)
        plan = cut(batch, size=len(mine), shuffle="prompts", permutation=range, piece_tokens=recipe.piece_tokens)
        taken = learner.step(batch, plan[0], NEXT_TOKEN)
        if step % 50 == 0 or step == recipe.steps - 1:
            print(f"{step:>6}/{recipe.steps}  loss {taken.loss:.4f}", flush=True)
    return decoder, tokenizer


def written(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> Batch:
    """Demonstrations as samples of written tokens, each ended by the tokenizer's end token."""
    end = min(tokenizer.eos)

    def family(i: int, problem: str, answer: str) -> Family:
        prompt = Prompt(problem, tokenizer.encode(problem))
        ids = (*tokenizer.encode(answer), end)
        open_sample = Sample(context=prompt.context, stream=(0,), limit=len(ids), finish=Finish.stop)
        sample = open_sample.insert(ids, WRITTEN).judged(Verdict(Outcome.correct))
        return Family(Draw(i, prompt, 1), (sample,))

    batch = pack([family(i, *pair) for i, pair in enumerate(pairs)])
    return batch.having(advantage=torch.ones(batch.tokens, dtype=torch.float64))


def main(recipe: str, out: str) -> None:
    torch.set_num_threads(1)
    decoder, tokenizer = warm_start(read(WarmStart, Path(recipe)))
    write_model(decoder, Path(out), tokenizer=tokenizer)
    print(f"{sum(p.numel() for p in decoder.parameters()):,} parameters in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
