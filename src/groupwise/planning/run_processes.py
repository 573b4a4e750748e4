"""The processes of a run on this host, and the memory of each: ranks of the learner, and replicas of the engine."""

from collections.abc import Mapping
from dataclasses import replace

from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import device_of
from groupwise.config.task_sources import generates_nothing
from groupwise.core import Usage, counted
from groupwise.engines import Served, Vllm
from groupwise.engines.remote.replica_devices import gpu_count, gpu_indices, rank_devices
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.models import DecoderShape
from groupwise.planning.process_memory import (
    BYTES,
    GIB,
    ProcessMemoryPrediction,
    ProcessWork,
    gathers_layers,
    plan_line,
    refuse_beyond,
    run_memory,
    samples_in_learner,
)

RUN = "the run"
"""The name of the process of a run with one rank."""


def process_memories(recipe: Recipe, shape: DecoderShape, context: int) -> dict[str, ProcessMemoryPrediction]:
    """The memory of each process that a run has on this host, by name, in the order in which they start."""
    ranks = rank_memories(recipe, shape, context, samples=samples_in_learner(recipe))
    names = [f"rank {rank}" for rank in range(len(ranks))] if len(ranks) > 1 else [RUN]
    size = recipe.engine.tensor_parallel_size if isinstance(recipe.engine, Vllm) else 1
    work = ProcessWork(has_learner=False, run_engine_count=engines_of(recipe), tensor_parallel=size)
    engine = run_memory(recipe, shape, context, work)
    return {**dict(zip(names, ranks)), **{f"engine {index}": engine for index in range(replicas_here(recipe))}}


def rank_memories(
    recipe: Recipe, shape: DecoderShape, context: int, *, samples: bool = True
) -> tuple[ProcessMemoryPrediction, ...]:
    """The memory of each rank of a run. Rank 0 also `samples`; with shards it keeps a whole model if it needs one.

    Without shards every rank counts as much as rank 0.
    """
    ranks = recipe.cluster.ranks
    if ranks == 1 or not recipe.cluster.sharded:
        return (run_memory(recipe, shape, context, ProcessWork(has_engine=samples)),) * ranks
    first, other = (
        run_memory(recipe, shape, context, ProcessWork(has_engine=s, learner_rank_count=ranks))
        for s in (samples, False)
    )
    whole = {} if gathers_layers(recipe, ranks) else {"engine": first.parameter_count * BYTES[recipe.machine.dtype]}
    phases = {name: {**whole, **parts} for name, parts in first.phase_bytes.items()}
    return replace(first, phase_bytes=phases), *[other] * (ranks - 1)


def replicas_here(recipe: Recipe) -> int:
    """The number of engines that a run starts as processes of this host."""
    engine = recipe.engine
    if not isinstance(engine, Served) or recipe.cluster.launch != "local" or generates_nothing(recipe):
        return 0
    return engine.replicas


def engines_of(recipe: Recipe) -> int:
    """The number of engines that share the answers of an iteration."""
    engine = recipe.engine
    return engine.replicas + len(engine.addresses) if isinstance(engine, Served) else 1


def sharing(recipe: Recipe, processes: Mapping[str, ProcessMemoryPrediction]) -> Mapping[str, ProcessMemoryPrediction]:
    """The processes that share the memory of one device: all of them on a CPU, else those on the GPU that needs most.

    Each rank and each engine has a separate GPU where there are enough of them.
    """
    first = device_of(recipe.machine.device)
    if not first.startswith("cuda"):
        return processes
    ranks, engine = recipe.cluster.ranks if recipe.cluster.launch == "local" else 1, recipe.engine
    try:
        devices = [*rank_devices(ranks, first, gpu_count())]
        if replicas_here(recipe) and isinstance(engine, Served):
            devices += engine.replica_devices(EngineRequirements(dtype=recipe.machine.dtype, device=first, ranks=ranks))
    except Usage:  # too few GPUs: the checks of the machine and of the engine report it
        return processes
    groups: dict[int, dict[str, ProcessMemoryPrediction]] = {}
    for device, (name, memory) in zip(devices, processes.items()):
        for gpu in gpu_indices(device):
            groups.setdefault(gpu, {})[name] = memory
    return max(groups.values(), key=lambda group: at_once(recipe, group))


def at_once(recipe: Recipe, processes: Mapping[str, ProcessMemoryPrediction]) -> int:
    """The most bytes that all processes have at once: their peaks, unless engines sleep while the learner works."""
    engines = [memory for memory in processes.values() if "learning" not in memory.phase_bytes]
    if not (engines and isinstance(recipe.engine, Served) and recipe.engine.placement == "colocated"):
        return sum(memory.peak for memory in processes.values())
    learners = [memory for memory in processes.values() if memory not in engines]
    fixed = sum(memory.python_bytes for memory in processes.values())
    learning = sum(memory.peak - memory.python_bytes for memory in learners)
    sampling = sum(sum(memory.permanent_bytes.values()) for memory in learners)
    return fixed + max(learning, sampling + sum(memory.peak - memory.python_bytes for memory in engines))


def check_memory(recipe: Recipe, shape: DecoderShape, context: int, available: int, owner: str) -> str:
    """The memory that a run needs, as one line for the user. `Usage` if it is more than `owner` has `available`."""
    processes = process_memories(recipe, shape, context)
    together = sharing(recipe, processes)
    name, largest = max(together.items(), key=lambda process: process[1].peak)
    whole = at_once(recipe, together)
    beside = whole - largest.peak
    if beside >= available:
        what = f"this run needs about {whole / GIB:.1f} GiB in {len(together)} processes"
        fix = "lower engine.replicas or cluster.ranks"
        raise Usage(f"{what}, and {owner} has {available / GIB:.1f} GiB", fix=fix)
    refuse_beyond(recipe, largest, available - beside, f"{name}, beside the others," if beside else owner)
    first, *others = processes.values()
    line = plan_line(recipe, first)
    if others and len(set(map(id, processes.values()))) == 1:
        return f"{line} in each of {len(processes)} processes"
    ranks, engines = recipe.cluster.ranks - 1, replicas_here(recipe)
    line += " in rank 0" if ranks else " in the learner" if engines else ""
    line += f", {others[0].peak / GIB:.1f} GiB in each other rank" if ranks else ""
    return line + (f", {others[-1].peak / GIB:.1f} GiB in each of {counted(engines, 'engine')}" if engines else "")
