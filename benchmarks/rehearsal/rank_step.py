"""One rank's step of the learner on the fake device: its exchanges and its peak of memory, by phase."""

import gc
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from benchmarks.rehearsal.exchanges import Exchange
from benchmarks.rehearsal.fake_device import FakeDevice, fake_device

from groupwise.config.recipe import Recipe
from groupwise.data import Batch, Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict, pack
from groupwise.learner import Learner, Ranks, ReplicatedRanks, measure_plan
from groupwise.learner.microbatch_sharing import MicrobatchSharing, RankShare
from groupwise.learner.rank_pulse import RankPulse
from groupwise.learner.update import OLD
from groupwise.models import Decoder, DecoderShape, attach
from groupwise.models.decoder.layer_weights import layer_of
from groupwise.planning.cost_model import TokenLengths, measuring_passes
from groupwise.planning.process_memory import gathers_layers
from groupwise.training.build_run import DTYPES, new_learner
from groupwise.training.loop import compute_advantages, plan
from groupwise.training.rank_worker import batch_measures, kind_of_ranks

__all__ = ["Phase", "RankTrace", "first_step", "rehearse"]

START, MEASURING, LEARNING, UPDATING, PUBLISHING = PHASES = "start", "measuring", "learning", "updating", "publishing"
DEADLINE = 60.0


@dataclass(slots=True)
class Phase:
    """The exchanges of a phase, the bytes that exist when it begins, and the most while it lasts."""

    held: int
    peak: int = 0
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The phases of a rank, and the number of its microbatches."""

    phases: dict[str, Phase]
    microbatches: int

    @property
    def exchanges(self) -> list[Exchange]:
        """The exchanges of all phases in their order."""
        return [each for phase in self.phases.values() for each in phase.exchanges]


class Phases:
    """The phases of a rank, each from `begin` to the next one's."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.by_name = device, dict[str, Phase]()

    def begin(self, name: str) -> None:
        self.end()
        self.by_name[name] = Phase(held=self.device.memory.bytes)
        self.device.memory.restart()
        self.device.exchanges = self.by_name[name].exchanges

    def end(self) -> None:
        """End the present phase."""
        if self.by_name:
            self.by_name[next(reversed(self.by_name))].peak = self.device.memory.peak


def first_step(recipe: Recipe, lengths: TokenLengths) -> Batch:
    """The samples of a recipe's first optimizer step: random tokens, answers of these lengths, every second one right.

    Group after group takes the lengths in their order.
    """
    draws, group = random.Random(recipe.seed), recipe.method.group_size
    prompts = -(-recipe.prompts // recipe.method.minibatches)
    answers = lengths.answer_lengths

    def sample(i: int, k: int, prompt: tuple[int, ...]) -> Sample:
        n = answers[(i * group + k) % len(answers)]
        outcome = Outcome.correct if k % 2 else Outcome.wrong
        return Sample(
            context=prompt, stream=(i, k), limit=recipe.sampling.max_tokens, tokens=tuple(draws.randbytes(n)),
            origin=(0,) * n, logp=(-1.0,) * n, finish=Finish.stop, verdict=Verdict(outcome),
        )  # fmt: skip

    rollouts = []
    for i in range(prompts):
        prompt = tuple(draws.randbytes(lengths.prompt_tokens))
        samples = tuple(sample(i, k, prompt) for k in range(group))
        rollouts.append(Rollout(Draw(i, Prompt(str(i), prompt), group), samples))
    return pack(rollouts, max_tokens=recipe.sampling.max_tokens)


def rehearse(recipe: Recipe, shape: DecoderShape, batch: Batch) -> list[RankTrace]:
    """The step of each rank, one after the other. A store holds what rank 0 tells the others."""
    size, store, shapes = recipe.cluster.ranks, dist.HashStore(), dict[Any, Any]()
    calls: list[Mapping[str, Any]] = []
    for rank in range(size):
        store.set(f"started/{rank}", "")
    traces = []
    for rank in range(size):
        traces.append(_rank_step(recipe, shape, batch, rank, store, shapes, calls))
        gc.collect()
    return traces


class RehearsedSharing(MicrobatchSharing):
    """Hands microbatches to the ranks as they are: `calls` has the calls on rank 0, each with the shares of all."""

    def __init__(self, ranks: Ranks, model: torch.nn.Module, calls: list[Mapping[str, Any]]) -> None:
        super().__init__(ranks, model)
        self.calls = calls

    def tell(self, **header: Any) -> None:
        """The other ranks need no message."""

    def hand_out(
        self, batch: Batch, microbatches: Sequence[Sequence[int]], *, to_all: bool = False, **header: Any
    ) -> RankShare:
        shares = [self.share_of(batch, microbatches, rank, to_all) for rank in range(self.ranks.size)]
        self.calls.append({**header, "shares": shares})
        return shares[0]

    def received(self, header: Mapping[str, Any], *_: Any) -> RankShare:
        return header["shares"][self.ranks.rank]


def _rank_step(
    recipe: Recipe, shape: DecoderShape, batch: Batch, rank: int, store: Any, shapes: dict[Any, Any],
    calls: list[Mapping[str, Any]],
) -> RankTrace:  # fmt: skip
    """Start the learner of a rank, measure, take the step, and send the weights to rank 0, as a run does."""
    method, lanes, tokens = recipe.method, recipe.cluster.reduction_lanes, recipe.machine.microbatch_tokens
    model = Decoder(shape).to(DTYPES[recipe.machine.dtype])
    if recipe.lora is not None:
        attach(model, recipe.lora, seed=recipe.seed)
        model.to("meta")
    with fake_device(shapes) as device:
        phases = Phases(device)
        phases.begin(START)
        pulse = RankPulse(store, rank, recipe.cluster.ranks, DEADLINE)  # no rank waits: it needs no thread
        ranks = kind_of_ranks(recipe.cluster.sharded)(store, pulse, lanes, deadline=DEADLINE)
        try:
            model.recompute = recipe.machine.gradient_checkpointing
            layers = ranks.shards and gathers_layers(recipe, ranks.size)
            if not (layers or (ranks.shards and rank)):  # the others hold no whole model
                model.to_empty(device="cpu")
            learner = new_learner(model, recipe, ranks)
            learner.sharing = RehearsedSharing(ranks, learner.model, calls)
            follow = partial(learner.follow, tensors={}, objective=method.objective, auxiliary=method.auxiliary_losses,
                             measures=batch_measures(method))  # fmt: skip
            steps = plan(recipe, method, batch, 0, 0, lanes)
            wanted = method.needs_before_steps | (frozenset({OLD}) if measuring_passes(recipe) else frozenset())
            phases.begin(MEASURING)
            first = measure_plan(steps, batch, microbatch_tokens=tokens, lanes=lanes)
            if rank:
                for call in calls[:-1]:
                    follow(call)
            else:
                batch = compute_advantages(learner.compute_measures(batch, first, wanted), method)
            phases.begin(LEARNING)
            norm = learner.optimizer.norm

            def updating() -> float:
                phases.begin(UPDATING)
                return norm()

            with patch.object(learner.optimizer, "norm", updating):
                if rank:
                    follow(calls[-1])
                else:
                    learner.step(batch, steps[0], method.objective, method.router_replay, method.auxiliary_losses)
            learner.end_iteration()
            phases.begin(PUBLISHING)
            publish(learner, layers=layers)
            phases.end()
        finally:
            ranks.close()
    return RankTrace(phases=phases.by_name, microbatches=len(steps[0].microbatches) // ranks.size)


def publish(learner: Learner, *, layers: bool) -> None:
    """Send the weights to rank 0: all of them, a layer at a time, or the trained ones to its whole model."""
    ranks = learner.ranks
    names = [name for name, x in learner.model.named_parameters() if layers or x.requires_grad]
    for part in [list(part) for _, part in groupby(names, layer_of)] if layers else [names]:
        if isinstance(ranks, ReplicatedRanks) and ranks.shards and ranks.rank:
            ranks.receive()
        learner.weights(part if layers or ranks.rank else ())


def largest(traces: Sequence[RankTrace], phase: str) -> int:
    """The largest peak of a phase over the ranks above 0, which hold no engine's model."""
    return max(trace.phases[phase].peak for trace in traces[1:])
