"""One run of Groupwise, like `groupwise train` with its logs and without evaluation. Prints a line of JSON.

    python -m benchmarks.trl_comparison.run_groupwise a

With `--engines N`, N engines in other processes sample, and with `--max-staleness 1` they do so while the
learner works.

If a regime forces lengths, a strategy sets the limit of each sample, the token that ends a sample is none of the
model's, and the verdict is the parity of its token ids. Engine, learner and loop are unchanged.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.trl_comparison.endless_engine import Endless
from benchmarks.trl_comparison.paths import model_of, problems_of
from benchmarks.trl_comparison.regimes import ALL_REGIMES, Regime
from benchmarks.trl_comparison.rewards import parity
from benchmarks.trl_comparison.run_options import run_options
from benchmarks.trl_comparison.stopwatch import Stopwatch, versions
from benchmarks.trl_comparison.turns import NoMoreTurns, print_json

import groupwise.training.build_run as builder
from groupwise.advantages import Standardised
from groupwise.config.recipe import Cluster, Evaluate, Machine, Recipe, Save
from groupwise.config.user_code import UserCode
from groupwise.data import Batch, Draw, Outcome, Prompt, Rollout, Sample, Sampler, Sampling, Verdict, Verifier
from groupwise.engines import Native
from groupwise.learner import AdamW, Learner
from groupwise.methods import Method
from groupwise.models import read_tokenizer
from groupwise.objective import Clip, Objective, sequence_mean, sequence_ratio, token_mean
from groupwise.rollout import Independent, IterationRollouts
from groupwise.runs.run_layout import RunLayout
from groupwise.runs.run_logs import RunLogs
from groupwise.training.build_run import RunObjects
from groupwise.training.loop import run as loop
from groupwise.training.run_recorder import RunRecorder
from groupwise.verifiers import Exact


@dataclass(frozen=True, slots=True)
class Forced:
    """Independent samples, each with the length that the regime forces."""

    regime: Regime

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        iteration, index = divmod(draw.id, self.regime.prompts)
        lengths = self.regime.lengths_of(iteration) or []
        limits = lengths[index * draw.n : (index + 1) * draw.n]
        samples = [
            replace(s, limit=n) for s, n in zip(sampler.start(draw.prompt.token_ids, draw.n), limits, strict=True)
        ]
        return Rollout(draw, tuple(await sampler.verify(await asyncio.gather(*map(sampler.extend, samples)))))


class EvenSum(Verifier):
    """Correct if the sum of the token ids is even."""

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.correct if parity(sample.tokens) else Outcome.wrong)


class Timed(RunRecorder):
    """A recorder with a stopwatch."""

    watch: Stopwatch

    @contextmanager
    def phase(self, name: str, *, watched_as: str = "") -> Iterator[None]:
        if name == "sample":
            self.watch.begin()
        with super().phase(name, watched_as=watched_as), self.watch.phase(name):
            yield

    def iteration(self, collected: IterationRollouts, batch: Batch, *rest: Any) -> dict[str, Any]:
        self.watch.note(tokens=batch.tokens, reward=float(batch.reward.mean()))
        return super().iteration(collected, batch, *rest)

    def write(self, line: dict[str, Any], learner: Learner) -> None:
        super().write(line, learner)
        self.watch.note(loss=line["loss"])
        self.watch.end()


def recipe_of(
    regime: Regime, *, iterations: int, seed: int, machine: Machine, engines: int = 0, max_staleness: int = 0
) -> Recipe:
    """The regime as a recipe."""
    surrogate = (
        Clip(regime.low, regime.high, ratio=sequence_ratio) if regime.loss == "gspo" else Clip(regime.low, regime.high)
    )
    return Recipe(
        model=str(model_of(regime)),
        task=problems_of(regime),
        verifier=None if regime.net is None else Exact(),
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
        optimizer=AdamW(lr=regime.lr, lr_scheduler=regime.decay),
        machine=machine,
        engine=Endless(replicas=engines) if engines else Native(),
        cluster=Cluster(max_staleness=max_staleness),
        evaluate=Evaluate(every=0),
        save=Save(every=0),
    )


def measure(
    regime: Regime,
    *,
    iterations: int,
    seed: int,
    machine: Machine,
    turns: bool = False,
    engines: int = 0,
    max_staleness: int = 0,
) -> dict[str, Any]:
    """Run and time the regime. With `turns`, waits for a line before each turn after the warm-up."""
    about = {
        "system": "groupwise",
        "regime": regime.letter,
        "threads": machine.threads,
        "engines": engines,
        "max_staleness": max_staleness,
    }
    packages = versions("groupwise", "torch", "transformers", "numpy")
    watch = Stopwatch(regime.turns if turns else (), {**about, "versions": packages})
    recipe = recipe_of(
        regime, iterations=iterations, seed=seed, machine=machine, engines=engines, max_staleness=max_staleness
    )
    if regime.lengths is not None:
        assert regime.net is not None
        never = frozenset({regime.net.vocabulary_size})
        builder.read_tokenizer = lambda path: replace(read_tokenizer(path), eos_ids=never)
    ready = builder.build(recipe, UserCode())
    if regime.lengths is not None:
        ready = replace(ready, rollout_setting=replace(ready.rollout_setting, verifier=EvenSum()))

    train(recipe, ready, watch)
    lengths_by_iteration = [regime.lengths_of(i) for i in range(iterations)]
    for iteration, lengths in zip(watch.iterations, lengths_by_iteration, strict=not turns):
        assert lengths is None or iteration["tokens"] == sum(lengths), "lengths differ from the forced ones"
    return watch.as_json()


def train(recipe: Recipe, ready: RunObjects, watch: Stopwatch) -> None:
    """Train as `groupwise train` does, with its logs, without evaluation and checkpoints."""

    async def no_evaluation() -> dict[str, float]:
        return {}

    learner, buffer, guards = ready.new_learner(), ready.new_buffer(), ready.new_guards()
    with tempfile.TemporaryDirectory() as directory:
        recorder = Timed(RunLayout(Path(directory)), RunLogs(RunLayout(Path(directory))), keep=1)
        recorder.watch = watch
        recorder.done = 0  # skips the first evaluation and the first checkpoint
        with suppress(NoMoreTurns):
            asyncio.run(loop(recipe, buffer, ready.engine, learner, recorder, guards, no_evaluation))


def main(argv: list[str] | None = None) -> None:
    parser = run_options("Run one regime in Groupwise", ALL_REGIMES)
    parser.add_argument("--engines", type=int, default=0, help="engines in other processes; 0: one in this process")
    parser.add_argument(
        "--max-staleness", type=int, default=0, choices=(0, 1), help="1: sample while the learner works"
    )
    a = parser.parse_args(argv)
    regime = ALL_REGIMES[a.regime]
    iterations = a.iterations or regime.warmup + regime.timed
    how: dict[str, Any] = {"turns": a.turns, "engines": a.engines, "max_staleness": a.max_staleness}
    print_json(measure(regime, iterations=iterations, seed=a.seed, machine=Machine(threads=a.threads), **how))


if __name__ == "__main__":
    main()
