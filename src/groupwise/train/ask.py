"""What the commands do that ask a model: eval, sample."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from groupwise.data import Ask, BadData, Family, Sampling, Span, Usage
from groupwise.models import find_model, read_model, read_tokenizer
from groupwise.rollout import NativeEngine
from groupwise.train.check import doors
from groupwise.train.commands import DEFAULT, refuse, tell
from groupwise.train.evaluate import MOST_VOTES, NO_VOTE, average, counts, figures, lengths, tally
from groupwise.train.place import DTYPES, Place, place, prepare
from groupwise.train.recipe import Recipe
from groupwise.train.sources import templates
from groupwise.train.text import read_over, read_recipe
from groupwise.train.use import Use, load_use


def evaluate(
    model_or_run: str,
    overrides: Sequence[tuple[str, str]] = (),
    use: Sequence[str] = (),
    *,
    samples: int = 4,
    problems: int | None = None,
    recipe_path: str | None = None,
    unsafe_local_exec: bool = False,
) -> int:
    """Held-out accuracy of a model directory or of a run's model: greedy, avg@n and unbiased pass@k."""
    directory = Path(model_or_run)
    loaded = load_use(use, unsafe_local_exec=unsafe_local_exec)
    if (directory / "recipe.toml").is_file():
        if not (directory / "model").is_dir():
            raise BadData(f"{directory} has no model yet", fix=f"finish it with: groupwise resume {directory}")
        source, model = directory / "recipe.toml", str(directory / "model")
        overrides = [("lora", "none"), *overrides]  # its model has the adapter already
    else:
        source, model = Path(recipe_path) if recipe_path else DEFAULT, model_or_run
    recipe, law = asked_of(source, [("model", model), *overrides], loaded)
    wanted = replace(recipe.evaluate, samples=samples, problems=problems or recipe.evaluate.problems)
    recipe = replace(recipe, evaluate=wanted)
    seen: list[str] = []
    refuse(doors(recipe, loaded, seen.append, train=False))
    tell(seen)
    ready = place(recipe, loaded)
    greedy, sampled = asyncio.run(ready.answer(law))
    print_evaluation(ready, greedy, sampled)
    return 0


def asked_of(source: Path, overrides: Sequence[tuple[str, str]], use: Use) -> tuple[Recipe, Sampling]:
    """A recipe, and the law to answer by: `--sampling.*` may say here what a recipe may not, truncation and greed."""
    laws = [(path, value) for path, value in overrides if path.startswith("sampling.")]
    recipe = read_recipe(source, [pair for pair in overrides if pair not in laws], use)
    return recipe, read_over(recipe.sampling, "recipe.sampling", [(p.partition(".")[2], v) for p, v in laws])


def print_evaluation(ready: Place, greedy: Sequence[Family], sampled: Sequence[Family]) -> None:
    """The numbers of `groupwise eval`, one a line."""
    n, tallies = ready.recipe.evaluate.samples, [tally(f) for f in sampled]
    numbers = {"greedy": average(greedy)} | figures(tallies, n, [k for k in (2, 4, 8, 16, 32, 64) if k <= n])
    for name, x in numbers.items():
        print(f"{name:<10} {x.value:.3f}  ({x.low:.3f} .. {x.high:.3f}, 95 % over {len(sampled)} problems)")
    if not all(t.votes for t in tallies):
        print(f"maj@k is left out: {NO_VOTE}, or there are more than {MOST_VOTES} answers to a problem")
    answers, found = sum(t.answers for t in tallies), lengths(sampled)
    for name, count in counts(sampled).items():
        size = found.get(name)
        told = f"  {size['mean']:.1f} tokens on average, {size['longest']} at most" if size else ""
        print(f"{name:<13} {count:>6} of {answers}{told}")


def sample(
    model: str, prompt: str, overrides: Sequence[tuple[str, str]] = (), use: Sequence[str] = (), *, n: int = 1
) -> int:
    """Answers of a model directory, or of a run's model, to one prompt."""
    directory = Path(model) / "model" if (Path(model) / "recipe.toml").is_file() else model
    recipe, law = asked_of(DEFAULT, [("model", str(directory)), *overrides], load_use(use))
    prepare(recipe.machine)
    home = find_model(recipe.model)
    tokenizer = read_tokenizer(home)
    decoder = read_model(home, dtype=DTYPES[recipe.machine.dtype], device=torch.device(recipe.machine.device))
    engine = NativeEngine(decoder, tokenizer=tokenizer, seed=recipe.seed)
    context = next(iter(templates(recipe, tokenizer).values()))(prompt)
    if not context:
        raise Usage("the prompt is empty in this model's alphabet", evidence=repr(prompt), fix="say something else")

    async def ask() -> list[Span]:
        await engine.load(0, dict(decoder.state_dict()))
        asks = [Ask(context=context, limit=law.max_tokens, draw=0, stream=(i,), sampling=law) for i in range(n)]
        return await asyncio.gather(*map(engine.sample, asks))

    for span in asyncio.run(ask()):
        print(shown(tokenizer.decode(span.tokens)))
    return 0


def shown(text: str) -> str:
    """Model text made harmless for a terminal: control characters are written out, line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
