"""Finds the largest microbatch and `max_num_seqs` that fit in memory, and the nearest recipe that fits."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from groupwise.config.recipe import Recipe
from groupwise.config.recipe_toml import override
from groupwise.data import takes_quantized_base
from groupwise.engines import Native
from groupwise.models import DecoderShape
from groupwise.planning.machines import PlannedMachines
from groupwise.planning.process_memory import BYTES, ProcessWork, key_value_bytes, run_memory
from groupwise.planning.read_model_shape import MixtureOfExpertsShape

MOST_TOKENS = 1 << 24
"""The largest microbatch and the largest cache that is tried, in tokens."""
Change = tuple[str, str]
"""A field of the recipe, as a dotted path, and its new value."""
Fits = Callable[[Recipe], bool]


def fits(recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, process: ProcessWork) -> bool:
    """Whether a process fits in the memory of one device."""
    return run_memory(recipe, shape, context, process).peak <= machines.memory


def largest(fitting: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that is fitting; 0 if 1 is not. A smaller number fits if a larger one does.

    >>> largest(lambda n: n <= 37, 1000), largest(lambda n: False, 1000), largest(lambda n: True, 1000)
    (37, 0, 1000)
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle - 1)
    return low


def with_microbatch(recipe: Recipe, tokens: int) -> Recipe:
    """The recipe with another `machine.microbatch_tokens`."""
    return replace(recipe, machine=replace(recipe.machine, microbatch_tokens=tokens))


def largest_microbatch(
    recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, process: ProcessWork
) -> int:
    """The largest `machine.microbatch_tokens` that fits, at most an iteration's tokens; 0 if one answer does not fit.

    A microbatch has at least one answer, so a smaller number of tokens saves nothing.
    """
    answers = recipe.prompts * recipe.method.group_size
    most = min(MOST_TOKENS, recipe.prompts * context + answers * recipe.sampling.max_tokens)
    return largest(lambda n: fits(with_microbatch(recipe, n), shape, context, machines, process), most)


def longest_sample(
    recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, process: ProcessWork
) -> int:
    """The longest sample, in tokens with its prompt, that a learner computes on one device; 0 if none fits.

    A longer one needs context parallelism, which cuts a sample over devices. At most the model's positions.
    """
    learner = replace(process, has_engine=False)

    def fitting(answer: int) -> bool:
        one = with_microbatch(replace(recipe, sampling=replace(recipe.sampling, max_tokens=answer)), context + answer)
        return fits(one, shape, context, machines, learner)

    answer = largest(fitting, shape.max_positions - context)
    return answer and context + answer


def cached_tokens_that_fit(
    recipe: Recipe, shape: DecoderShape, context: int, machines: PlannedMachines, process: ProcessWork
) -> int:
    """The tokens whose keys and values fit on a device of an engine, beside everything else while it samples."""
    memory = run_memory(recipe, shape, context, process)
    parts = {**memory.permanent_bytes, **memory.phase_bytes["sampling"]}
    beside = memory.python_bytes + sum(bytes_ for name, bytes_ in parts.items() if name not in ("rows", "prompts"))
    token = key_value_bytes(shape, BYTES[recipe.machine.dtype]) / process.tensor_parallel
    return max(0, int((machines.memory - beside) / token))


def nearest_changes(recipe: Recipe, shape: DecoderShape, fitting: Fits, context: int) -> tuple[Change, ...] | None:
    """The changes to the nearest recipe that fits, empty if it fits as it is; None if no change is enough.

    Changes that leave the gradient as it is are tried first. A change that turns out to be unnecessary is left out.
    """
    changes: list[Change] = []
    if fitting(recipe):
        return ()
    for change in candidates(recipe, shape, context):
        changes.append(change)
        if fitting(changed(recipe, changes)):
            break
    else:
        return None
    for change in list(changes):
        fewer = [other for other in changes if other != change]
        if fitting(changed(recipe, fewer)):
            changes = fewer
    return tuple(relaxed(recipe, changes, fitting))


def candidates(recipe: Recipe, shape: DecoderShape, context: int) -> Iterator[Change]:
    """Changes that save memory: first those without an effect on the gradient, last those that train less."""
    recompute = "machine.gradient_checkpointing", "true"
    learning = (run_memory(each, shape, context).during("learning") for each in (changed(recipe, [recompute]), recipe))
    if next(learning).peak < next(learning).peak:  # of a small model, it saves less than its modules need
        yield recompute
    answer = context + recipe.sampling.max_tokens
    if recipe.machine.microbatch_tokens > answer:
        yield "machine.microbatch_tokens", str(answer)
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    if engine.kv_cache_tokens > answer:
        yield "engine.kv_cache_tokens", str(answer)
    if engine.max_num_seqs > 1:
        yield "engine.max_num_seqs", "1"
    if recipe.machine.dtype != "bfloat16":
        yield "machine.dtype", "bfloat16"
    if isinstance(shape, MixtureOfExpertsShape):
        return
    if recipe.lora is None:
        yield "lora.rank", "16"
    if not recipe.machine.quantization and takes_quantized_base(recipe.engine):
        yield "machine.quantization", "nf4"


def changed(recipe: Recipe, changes: list[Change]) -> Recipe:
    """The recipe with these changes."""
    for path, value in changes:
        recipe = override(recipe, path, value)
    return recipe


def relaxed(recipe: Recipe, changes: list[Change], fitting: Fits) -> list[Change]:
    """The same changes with the largest microbatch, cache and number of rows that still fit."""
    for i, (path, value) in enumerate(changes):
        if path not in ("machine.microbatch_tokens", "engine.kv_cache_tokens", "engine.max_num_seqs"):
            continue

        def fitting_with(n: int, i: int = i, path: str = path) -> bool:
            return fitting(changed(recipe, [*changes[:i], (path, str(n)), *changes[i + 1 :]]))

        most = getattr(recipe.machine if path.startswith("machine") else recipe.engine, path.partition(".")[2])
        changes[i] = (path, str(max(int(value), largest(lambda n: n == 0 or fitting_with(n), most))))
    return changes
