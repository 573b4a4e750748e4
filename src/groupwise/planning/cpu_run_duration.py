"""The seconds of a run on this machine's CPU, from a measurement that takes about a tenth of a second.

The measurement uses the CPU time of its thread, so other programs hardly change it; a busy machine takes longer than
the prediction. It draws no random number. docs/plan.md compares predictions with runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from groupwise.config.recipe import Recipe
from groupwise.core import counted
from groupwise.engines import Native
from groupwise.models import DecoderShape
from groupwise.planning.cost_model import TokenLengths, passes, step_seconds, times_of
from groupwise.planning.machines import PlannedMachines
from groupwise.planning.process_memory import ALONE, BYTES

OPERATION = 16 * 64
"""Elements of a small tensor: an operation on it takes the time of its call."""
LAYER_CALLS = 60
"""The time of a decoder layer's calls in a decoding step, in small operations."""
TOKEN_CALLS = 20
"""The time of a token outside the model (its request, its columns of the batch, its record), in small operations."""
ITERATION_CALLS = 30_000
"""The time of an iteration's other work, such as its files, in small operations."""
DISTRIBUTION_READS = 24
"""The time of a token's distributions, in sampling and in learning, in readings of its logits."""
SLOWER = 2.2
"""A run's seconds divided by the seconds from the rates: its products are smaller and its tensors rarely cached."""
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class CpuRates:
    """Rates of this machine: operations of matrix products and bytes read per second, seconds of a small operation."""

    matmul_flops_per_second: float
    memory_read_bytes_per_second: float
    small_operation_seconds: float


@cache
def measured_rates(dtype: str, threads: int) -> CpuRates:
    """Measure the rates in a dtype with a number of threads. The number of torch's threads is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        kind = getattr(torch, dtype)
        rows, weights = torch.ones(256, 512, dtype=kind), torch.ones(512, 1536, dtype=kind)
        small, large = torch.ones(OPERATION), torch.ones(1 << 23)
        with torch.inference_mode():
            products = 2 * rows.numel() * weights.shape[1] / fastest(lambda: rows @ weights)
            read = large.numel() * large.element_size() / fastest(lambda: large.sum())
            operation = fastest(lambda: [small * small for _ in range(100)]) / 100
        return CpuRates(products, read, operation)
    finally:
        torch.set_num_threads(before)


def fastest(call: Callable[[], object], repeats: int = 4) -> float:
    """The least CPU seconds of a call among some repetitions."""
    seconds = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        seconds.append(time.thread_time() - start)
    return max(min(seconds), 1e-9)


@dataclass(frozen=True, slots=True)
class RunDuration:
    """The seconds of an iteration and of the whole run, if all answers have `sampling.max_tokens` tokens."""

    iteration_seconds: float
    run_seconds: float


def run_duration(recipe: Recipe, shape: DecoderShape, prompt: int, held_out: int, rates: CpuRates) -> RunDuration:
    """The seconds of a run with prompts of at most `prompt` tokens and `held_out` problems, without its warm start."""
    sampled, learned = phases(recipe, shape, prompt, rates)
    iteration = SLOWER * (sampled(recipe.prompts * recipe.method.group_size) + learned)
    every = recipe.evaluate.every or max(recipe.iterations, 1)
    evaluations = 1 + -(-recipe.iterations // every)
    problems = min(held_out, recipe.evaluate.problems) * (1 + recipe.evaluate.samples)
    return RunDuration(iteration, recipe.iterations * iteration + evaluations * SLOWER * sampled(problems))


def phases(recipe: Recipe, shape: DecoderShape, prompt: int, rates: CpuRates) -> tuple[Callable[[int], float], float]:
    """The seconds by the rates alone: of sampling, by the number of answers, and of an iteration's other work."""
    method, tokens = recipe.method, recipe.sampling.max_tokens
    answers = recipe.prompts * method.group_size
    machines = cpu_of(shape, rates)
    times = times_of(recipe, shape, machines, TokenLengths(prompt_tokens=prompt, answer_lengths=(tokens,)), ALONE)
    rows = recipe.engine.max_num_seqs if isinstance(recipe.engine, Native) else answers
    distribution = (
        DISTRIBUTION_READS / 2 * shape.vocabulary_size * BYTES["float32"] / rates.memory_read_bytes_per_second
    )

    def sampled(count: int) -> float:
        row = times.decode_row_seconds + distribution + TOKEN_CALLS * rates.small_operation_seconds
        return tokens * (-(-count // rows) * times.decode_step_seconds + count * row)

    microbatches = max(method.minibatches, answers * (prompt + tokens) / recipe.machine.microbatch_tokens)
    learned = times.learn_token_seconds * (recipe.prompts * prompt + answers * tokens) + times.optimizer_step_seconds
    learned += answers * tokens * distribution + microbatches * passes(recipe) * step_seconds(recipe, shape, machines)
    return sampled, learned + ITERATION_CALLS * rates.small_operation_seconds


def cpu_of(shape: DecoderShape, rates: CpuRates) -> PlannedMachines:
    """This CPU with its rates. The memory is not known here."""
    return PlannedMachines(
        name="this machine",
        device_count=1,
        memory_gib=1.0,
        device_type="cpu",
        rates_source="measured",
        tflops=rates.matmul_flops_per_second / 1e12,
        memory_bandwidth_gb_s=rates.memory_read_bytes_per_second / 1e9,
        decode_step_overhead_ms=1e3 * shape.layers * LAYER_CALLS * rates.small_operation_seconds,
    )


def duration_lines(recipe: Recipe, duration: RunDuration) -> list[str]:
    """The line about a run's seconds, and a warning if an iteration takes more than an hour."""
    whole = f"{counted(recipe.iterations, 'iteration')}: {rounded(duration.run_seconds)}"
    after = ", after its warm start" if recipe.warm_start else ""
    each = f"about {rounded(duration.iteration_seconds)} an iteration on this CPU"
    lines = [f"time: {each} if all answers have {counted(recipe.sampling.max_tokens, 'token')}, {whole}{after}"]
    if duration.iteration_seconds > HOUR:
        fix = "lower sampling.max_tokens, prompts or method.group_size, or train on a GPU"
        lines.append(f"  warning: an iteration may take more than an hour: {fix}")
    return lines


def rounded(seconds: float) -> str:
    """Seconds as a rounded time with its unit.

    >>> [rounded(s) for s in (0.04, 3.21, 61, 700, 9000, 500_000)]
    ['0.1 s', '3.2 s', '61 s', '12 min', '2.5 h', '5.8 days']
    """
    if seconds < 100:
        return f"{max(seconds, 0.1):.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.1f} h" if seconds < 48 * HOUR else f"{seconds / 24 / HOUR:,.1f} days"
