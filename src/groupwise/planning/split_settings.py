"""The settings of a recipe with which a run starts a split of the devices of one host."""

from groupwise.config.recipe import Recipe
from groupwise.engines import Served, Vllm
from groupwise.planning.device_splits import DevicePlacement
from groupwise.planning.fit_in_memory import Change


def split_settings(recipe: Recipe, placement: DevicePlacement, max_staleness: int) -> list[Change]:
    """The changes with which `recipe` runs on the devices of a placement, with this bound on the staleness.

    Several devices need engines in other processes, each on its own ones; where all devices sample and learn in turn,
    the engines free their memory before the learner works (`colocated`).
    """
    cluster, ranks = recipe.cluster, placement.learner_devices
    engine = recipe.engine if isinstance(recipe.engine, Served) else Served()
    wanted = {
        "cluster.max_staleness": (cluster.max_staleness, max_staleness),
        "cluster.ranks": (cluster.ranks, ranks),
        "cluster.shard": (cluster.shard, "full" if ranks > 1 else cluster.shard),
    }
    if placement.device_count > 1:
        wanted |= {
            "engine.kind": (type(recipe.engine).__name__, type(engine).__name__),
            "engine.replicas": (engine.replicas, placement.engines),
            "engine.placement": (engine.placement, "colocated" if placement.together else "separate"),
        }
    if isinstance(engine, Vllm):
        wanted["engine.tensor_parallel_size"] = (engine.tensor_parallel_size, placement.tensor_parallel)
    return [(path, str(value)) for path, (present, value) in wanted.items() if present != value]
