"""Seconds of sampling, learning and publishing, from a model's sizes and the rates of the machines."""

import math
from dataclasses import dataclass
from random import Random

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import device_of
from groupwise.models import DecoderShape
from groupwise.planning.decoding_step_kernels import LAUNCH, step_kernels
from groupwise.planning.learner_kernels import MEASURES, NO_MEASURES, forward_kernels, optimizer_step_kernels
from groupwise.planning.learner_traffic import LearnerTraffic, host_traffic, learner_traffic
from groupwise.planning.machines import AssumedLengths, PlannedMachines
from groupwise.planning.process_memory import BYTES, ProcessWork, key_value_bytes, run_memory, weight_bytes
from groupwise.planning.read_model_shape import active_weights, weights_of

DRAWN = 1 << 12
"""The number of lengths that a plan draws; a run with more samples repeats them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLengths:
    """Lengths of prompts and answers in tokens. `answer_lengths` is a table, which samples use in turn."""

    prompt_tokens: int
    answer_lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean length of an answer."""
        return sum(self.answer_lengths) / len(self.answer_lengths)

    @property
    def live(self) -> float:
        """The mean number of tokens that a running request has: long answers run for longer."""
        return self.prompt_tokens + sum(n * n for n in self.answer_lengths) / (2 * sum(self.answer_lengths))


def draw_lengths(assumed: AssumedLengths, prompt: int, limit: int) -> TokenLengths:
    """Draw lengths from the log-normal distribution of a machine file, cut at `limit`. The seed is fixed.

    >>> draw_lengths(AssumedLengths(median_answer_tokens=100, spread=0.0), prompt=7, limit=400).answer_lengths[:3]
    (100, 100, 100)
    """
    random, median = Random(0), assumed.median_answer_tokens or max(1, limit // 4)
    drawn = (median * math.exp(assumed.spread * random.gauss(0, 1)) for _ in range(DRAWN))
    return TokenLengths(
        prompt_tokens=prompt, answer_lengths=tuple(min(limit, max(1, round(length))) for length in drawn)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTimes:
    """Seconds of a run's operations; the fields of a simulator's `SimulationSetup` with the same names explain them."""

    decode_step_seconds: float
    decode_row_seconds: float
    learn_token_seconds: float
    optimizer_step_seconds: float
    publish_seconds: float


def times_of(
    recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, lengths: TokenLengths, process: ProcessWork,
    receivers: int = 1,
) -> OperationTimes:  # fmt: skip
    """The seconds of each operation if `process.ranks` learners and engines of `process.split` devices do the work.

    A decoding step reads all weights once, and the cache of each row. Publishing sends a copy of the weights to each of
    `receivers` hosts of engines, in the rounds of `send_rounds`. Not included: prefills, verdicts, and the
    communication within an engine.
    """
    size = BYTES[recipe.machine.dtype]
    operations, read = (
        machines.tflops * 1e12 * process.tensor_parallel,
        machines.memory_bandwidth_gb_s * 1e9 * process.tensor_parallel,
    )
    weights = weight_bytes(recipe, shape, weights_of(shape), size)
    cache = lengths.live * key_value_bytes(shape, size)
    return OperationTimes(
        decode_step_seconds=machines.sampling_time_factor * (step_seconds(recipe, shape, machines) + weights / read),
        decode_row_seconds=machines.sampling_time_factor
        * (cache / read + forward_operations(shape, lengths.live) / operations),
        learn_token_seconds=machines.learning_time_factor
        * learning_seconds(recipe, shape, machines, lengths, process.learner_rank_count),
        optimizer_step_seconds=machines.learning_time_factor
        * (
            update_seconds(recipe, shape, machines, lengths.prompt_tokens, process.learner_rank_count)
            + LAUNCH * learning_kernels(recipe, shape, lengths, process.learner_rank_count)
        ),
        publish_seconds=0.0 if process.shares_weights else machines.publish_seconds(weights, receivers),
    )


def step_seconds(recipe: Recipe, shape: DecoderShape, machines: PlannedMachines) -> float:
    """Seconds of a decoding step besides reading and computing: given, or those of launching its kernels."""
    return (
        LAUNCH * step_kernels(recipe, shape)
        if machines.decode_step_overhead_ms == "counted"
        else machines.decode_step_overhead_ms / 1e3
    )


def forward_operations(shape: DecoderShape, position: float) -> float:
    """Operations of the forward of one token at a position: two for each weight, and the products of attention."""
    return 2 * active_weights(shape) + 4 * shape.layers * shape.heads * shape.head_dim * position


def passes(recipe: Recipe) -> int:
    """The forwards that an iteration's learning is worth. A backward is worth two; `recompute` adds one.

    Old log-probs and each side model need one more forward.
    """
    return (3 + recipe.machine.gradient_checkpointing) * recipe.method.epochs + measuring_passes(recipe)


def measuring_passes(recipe: Recipe) -> int:
    """The forwards without gradient before an iteration's first step: of old log-probs, and of each side model."""
    method = recipe.method
    several = method.minibatches * method.epochs > 1 and method.old_logprobs != "engine"
    return several + len(method.models_in_use)


def learning_seconds(
    recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, lengths: TokenLengths, ranks: int
) -> float:
    """Seconds of all ranks for one token of an iteration: to compute it, or to send the weights if that takes longer.

    Ranks that share weights send them, and gradients, for each microbatch (`learner_traffic`); those of several hosts
    also send over the network (`host_traffic`). All of this overlaps with computing.
    """
    computing = passes(recipe) * forward_operations(shape, lengths.live) / (machines.tflops * 1e12)
    if ranks == 1:
        return computing
    each, hosts = rank_microbatches(recipe, lengths, ranks), -(-ranks // machines.device_count)

    def moving(traffic: LearnerTraffic, bandwidth_gb_s: float) -> float:
        measuring = traffic.forward_bytes + traffic.ends_bytes / (recipe.method.minibatches * each.count)
        sent = recipe.method.epochs * traffic.microbatch_bytes + measuring_passes(recipe) * measuring
        return sent / (bandwidth_gb_s * 1e9 * each.tokens)

    traffic = learner_traffic(recipe, shape, ranks)
    within = moving(traffic, machines.link_bandwidth_gb_s)
    between = moving(host_traffic(traffic, ranks, hosts), machines.network_bandwidth_gb_s) if hosts > 1 else 0.0
    return max(computing, within, between) / ranks


def update_seconds(recipe: Recipe, shape: DecoderShape, machines: PlannedMachines, prompt: int, ranks: int) -> float:
    """Seconds of an iteration's optimizer steps: each reads and writes the optimizer's state once."""
    memory = run_memory(recipe, shape, prompt, ProcessWork(has_engine=False, learner_rank_count=ranks))
    steps = recipe.method.minibatches * recipe.method.epochs
    return steps * 2 * memory.permanent_bytes["optimizer"] / (machines.memory_bandwidth_gb_s * 1e9)


def learning_kernels(recipe: Recipe, shape: DecoderShape, lengths: TokenLengths, ranks: int) -> int:
    """The kernels that a rank launches to learn from an iteration on a GPU; 0 on a CPU."""
    if device_of(recipe.machine.device) == "cpu":
        return 0
    method, each = recipe.method, rank_microbatches(recipe, lengths, ranks)
    answer_tokens = math.ceil(each.answer_tokens)
    step = optimizer_step_kernels(
        recipe, shape, microbatches=each.count, answer_tokens=answer_tokens, prompt=lengths.prompt_tokens
    )  # fmt: skip
    forward = forward_kernels(recipe, shape, answer_tokens=answer_tokens)
    passes = measuring_passes(recipe)
    measuring = (MEASURES if passes else NO_MEASURES) + passes * method.minibatches * each.count * forward
    return method.epochs * method.minibatches * step + measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMicrobatches:
    """The microbatches of a rank in an optimizer step, and the mean number of tokens and answer tokens of each."""

    count: int
    tokens: float
    answer_tokens: float


def rank_microbatches(recipe: Recipe, lengths: TokenLengths, ranks: int) -> RankMicrobatches:
    """The microbatches of a rank: a step is cut evenly into as many as needed, a multiple of the number of ranks."""
    prompts = recipe.prompts / recipe.method.minibatches
    answers = prompts * recipe.method.group_size * lengths.mean
    tokens = prompts * lengths.prompt_tokens + answers
    room = max(recipe.machine.microbatch_tokens, lengths.prompt_tokens + lengths.mean)
    count = math.ceil(math.ceil(tokens / room) / ranks)
    return RankMicrobatches(
        count=count, tokens=tokens / (count * ranks), answer_tokens=answers / (count * ranks)
    )  # fmt: skip
