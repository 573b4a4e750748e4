"""One run of Groupwise, as `groupwise train` makes it, its record included; evaluation off. Prints one line of JSON.

    python -m benchmarks.beside.ours a

Where a regime forces lengths, a strategy gives each answer its limit, no token ends an answer, and the verdict is the
parity of its ids: the engine, the learner and the loop are those of any run.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.beside.files import model_of, problems_of
from benchmarks.beside.regimes import WORKS, Regime
from benchmarks.beside.rewards import parity
from benchmarks.beside.turns import Over, said
from benchmarks.beside.watch import Watch, versions

import groupwise.training.build as placing
from groupwise.advantages import Standardised
from groupwise.config.recipe import Evaluate, Machine, Recipe, Save
from groupwise.config.user_code import Use
from groupwise.data import Batch, Draw, Outcome, Prompt, Rollout, Sample, Sampler, Sampling, Verdict
from groupwise.learner import AdamW
from groupwise.methods import Method
from groupwise.models import read_tokenizer
from groupwise.objective import Clip, Objective, sequence_mean, sequence_ratio, token_mean
from groupwise.rollout import Independent, Rollouts
from groupwise.runs.logs import RunLogs
from groupwise.training.loop import run as loop
from groupwise.training.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Forced:
    """Independent answers, each as long as the regime says."""

    regime: Regime

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        iteration, place = divmod(draw.id, self.regime.prompts)
        lengths = self.regime.lengths_of(iteration) or []
        own = lengths[place * draw.n : (place + 1) * draw.n]
        opened = [replace(s, limit=n) for s, n in zip(sampler.start(draw.prompt.context, draw.n), own, strict=True)]
        return Rollout(draw, tuple(await sampler.verify(await asyncio.gather(*map(sampler.extend, opened)))))


async def even(prompt: Prompt, sample: Sample) -> Verdict:
    """Right where the sum of the ids is even."""
    return Verdict(Outcome.correct if parity(sample.tokens) else Outcome.wrong)


class Timed(Recorder):
    """A logbook that also keeps a watch."""

    watch: Watch

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if name == "sample":
            self.watch.begin()
        with super().phase(name), self.watch.phase(name):
            yield

    def iteration(self, collected: Rollouts, batch: Batch, *rest: Any) -> dict[str, Any]:
        self.watch.note(tokens=batch.tokens, reward=float(batch.reward.mean()))
        return super().iteration(collected, batch, *rest)

    def write(self, line: dict[str, Any]) -> None:
        super().write(line)
        self.watch.end()


def recipe_of(regime: Regime, *, iterations: int, seed: int, machine: Machine) -> Recipe:
    """The regime as a recipe."""
    surrogate = (
        Clip(regime.low, regime.high, ratio=sequence_ratio) if regime.loss == "gspo" else Clip(regime.low, regime.high)
    )
    return Recipe(
        model=str(model_of(regime)),
        task=problems_of(regime),
        verifier="" if regime.net is None else "exact",
        method=Method(
            group_size=regime.group,
            strategy=Independent() if regime.lengths is None else Forced(regime),
            advantage=(Standardised(),),
            objective=Objective(surrogate=surrogate, aggregate=token_mean if regime.loss == "dapo" else sequence_mean),
            minibatches=regime.minibatches,
            epochs=regime.epochs,
        ),
        prompts=regime.prompts,
        iterations=iterations,
        seed=seed,
        sampling=Sampling(max_tokens=regime.max_tokens),
        optimizer=AdamW(lr=regime.lr, decay=regime.decay),
        machine=machine,
        evaluate=Evaluate(every=0),
        save=Save(every=0),
    )


def measure(regime: Regime, *, iterations: int, seed: int, machine: Machine, turns: bool = False) -> dict[str, Any]:
    """The run, timed; in turns of the regime's timed iterations after its warm-up."""
    about = {"system": "groupwise", "regime": regime.letter, "threads": machine.threads}
    used = versions("groupwise", "torch", "transformers", "numpy")
    watch = Watch(regime.turns if turns else (), {**about, "versions": used})
    recipe = recipe_of(regime, iterations=iterations, seed=seed, machine=machine)
    if regime.lengths is not None:
        placing.read_tokenizer = lambda path: replace(read_tokenizer(path), eos=frozenset())
    ready = placing.build(recipe, Use())
    if regime.lengths is not None:
        ready.buffer.verifier = even

    async def nothing() -> dict[str, float]:
        return {}

    with tempfile.TemporaryDirectory() as directory:
        logbook = Timed(Path(directory), RunLogs(Path(directory)), keep=1)
        logbook.watch = watch
        logbook.done = 0  # neither the first evaluation nor the checkpoint before it
        with suppress(Over):
            asyncio.run(loop(recipe, ready.buffer, ready.engine, ready.learner, logbook, ready.guards, nothing))
    forced = [regime.lengths_of(i) for i in range(iterations)]
    for iteration, lengths in zip(watch.iterations, forced, strict=not turns):
        assert lengths is None or iteration["tokens"] == sum(lengths), "lengths are not those that were forced"
    return watch.told()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Groupwise's side of one regime, as one line of JSON.")
    parser.add_argument("regime", choices=WORKS, metavar="REGIME", help="its letter")
    parser.add_argument("--iterations", type=int, help="other than the regime's warm-up and timed ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", action="store_true", help="after the warm-up, wait for a line before each turn")
    a = parser.parse_args(argv)
    regime = WORKS[a.regime]
    iterations = a.iterations or regime.warmup + regime.timed
    said(measure(regime, iterations=iterations, seed=a.seed, machine=Machine(threads=a.threads), turns=a.turns))


if __name__ == "__main__":
    main()
