"""The settings of a recipe with which a run starts a split of the devices of one host."""

from groupwise.config.recipe import Recipe
from groupwise.engines import Native, Served, Vllm
from groupwise.planning.device_splits import DevicePlacement
from groupwise.planning.fit_in_memory import Change


def split_settings(recipe: Recipe, placement: DevicePlacement, max_staleness: int) -> list[Change]:
    """The changes with which `recipe`, as on the plan's machines, runs on the devices of a placement.

    Several devices need engines in other processes, each on its own ones. Where all devices sample and learn in turn,
    the engines free their memory before the learner works (`colocated`), except those of vLLM on CPUs, which cannot. On
    GPUs, native engines in other processes have no `batch_invariant`.
    """
    cluster, ranks, several = recipe.cluster, placement.learner_devices, placement.device_count > 1
    engine = recipe.engine if isinstance(recipe.engine, Served) else Served()
    on_cpu = recipe.machine.device == "cpu"
    wanted: dict[str, tuple[object, object]] = {
        "cluster.max_staleness": (cluster.max_staleness, max_staleness),
        "cluster.ranks": (cluster.ranks, ranks),
        "cluster.shard": (cluster.shard, "full" if ranks > 1 else cluster.shard),
    }
    if several or engine is recipe.engine:
        wanted["engine.kind"] = (type(recipe.engine).__name__, type(engine).__name__)
        wanted["engine.replicas"] = (engine.replicas, placement.engines)
        if isinstance(recipe.engine, Native) and type(engine) is Served and not on_cpu:
            wanted["engine.batch_invariant"] = (recipe.engine.batch_invariant, False)
    if several:
        frees = placement.together and not (isinstance(engine, Vllm) and on_cpu)
        wanted["engine.placement"] = (engine.placement, "colocated" if frees else "separate")
    if isinstance(engine, Vllm):
        wanted["engine.tensor_parallel_size"] = (engine.tensor_parallel_size, placement.tensor_parallel)
    texts = {path: "false" if value is False else str(value) for path, (_, value) in wanted.items()}
    return [(path, texts[path]) for path, (present, value) in wanted.items() if present != value]
