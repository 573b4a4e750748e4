"""The settings of a recipe and the commands with which a run starts a split of the devices of one or several hosts."""

import shlex
from dataclasses import replace

from groupwise.config.recipe import Machine, Recipe
from groupwise.engines import EngineAccess, Native, Served, Vllm
from groupwise.engines.remote.served_settings import EngineRequirements
from groupwise.engines.vllm.vllm_python_environment import DEFAULT_PYTHON
from groupwise.planning.device_splits import DevicePlacement
from groupwise.planning.fit_in_memory import Change

ADDRESSES = "[$addresses]"
"""The value of `engine.addresses`: the shell's variable has those that the engines of other hosts print."""

FAR = f"HOST:7000#sha256={'0' * 64}"
"""The form of such an address."""


def split_settings(recipe: Recipe, placement: DevicePlacement, max_staleness: int) -> list[Change]:
    """The changes with which `recipe`, as on the plan's machines, runs on the devices of a placement.

    Several devices need engines in other processes, each on its own ones; those of other hosts are at `ADDRESSES`.
    Where all devices sample and learn in turn, the engines free their memory before the learner works (`colocated`),
    except those of vLLM on CPUs, which cannot. On GPUs, native engines in other processes have no `batch_invariant`.
    """
    cluster, ranks, several = recipe.cluster, placement.learner_devices, placement.device_count > 1
    engine = recipe.engine if isinstance(recipe.engine, Served) else Served()
    on_cpu = recipe.machine.device == "cpu"
    wanted: dict[str, tuple[object, object]] = {
        "cluster.max_staleness": (cluster.max_staleness, max_staleness),
        "cluster.ranks": (cluster.ranks, ranks),
        "cluster.shard": (cluster.shard, "full" if ranks > 1 else cluster.shard),
    }
    wanted["cluster.launch"] = (cluster.launch, launcher(recipe, placement))
    if several or engine is recipe.engine:
        wanted["engine.kind"] = (type(recipe.engine).__name__, type(engine).__name__)
        wanted["engine.replicas"] = (engine.replicas, placement.local_engines)
        if isinstance(recipe.engine, Native) and type(engine) is Served and not on_cpu:
            wanted["engine.batch_invariant"] = (recipe.engine.batch_invariant, False)
    if several:
        frees = placement.together and not (isinstance(engine, Vllm) and on_cpu)
        wanted["engine.placement"] = (engine.placement, "colocated" if frees else "separate")
    if isinstance(engine, Vllm):
        wanted["engine.tensor_parallel_size"] = (engine.tensor_parallel_size, placement.tensor_parallel)
    if placement.host_count > 1:
        wanted["engine.addresses"] = (len(engine.addresses), placement.engines - placement.local_engines)
    texts = {path: "false" if value is False else str(value) for path, (_, value) in wanted.items()}
    texts["engine.addresses"] = ADDRESSES
    return [(path, texts[path]) for path, (present, value) in wanted.items() if present != value]


def launcher(recipe: Recipe, placement: DevicePlacement) -> str:
    """The launcher of a placement: the recipe's if it is Ray, on one host and with devices that no two processes share.

    Ray gives each process separate devices, and a run whose launcher is external starts no engine.
    """
    if placement.learner_hosts > 1:
        return "external"
    keeps = recipe.cluster.launch == "ray" and placement.host_count == 1 and not placement.together
    return "ray" if keeps else "local"


def access_words(recipe: Recipe, placement: DevicePlacement) -> list[str]:
    """The words of the command line, which no recipe can give: vLLM's interpreter, and the hosts of engines."""
    python = ["--engine-python", DEFAULT_PYTHON] if isinstance(recipe.engine, Vllm) and placement.local_engines else []
    return [*python, *["--engine-host", "HOST", "--engine-secret", "secret"] * (placement.host_count > 1)]


def other_hosts_commands(recipe: Recipe, placement: DevicePlacement) -> dict[str, str]:
    """The commands that start the engines of other hosts, and ranks on several hosts, a command for each part.

    Empty for a placement on one host.
    """
    commands, hosts = {}, placement.learner_hosts
    if placement.host_count > 1:
        where = "the other host" if placement.engine_hosts == 1 else f"each of {placement.engine_hosts} other hosts"
        commands[f"engines on {where}"] = shlex.join(serve_words(recipe, placement))
    if hosts > 1:
        commands[f"ranks on each of {hosts} hosts"] = (
            f"torchrun --nnodes {hosts} --nproc-per-node {placement.host_devices} "
            "--rdzv-backend c10d --rdzv-endpoint HOST:29400 -m groupwise train"
        )
    return commands


def takes_nccl(recipe: Recipe, placement: DevicePlacement) -> bool:
    """Whether the engines of other hosts can get weights by NCCL, in place of a file over TLS."""
    if placement.host_count == 1 or not isinstance(recipe.engine, Vllm) or recipe.machine.quantization:
        return False
    engine = replace(
        recipe.engine, replicas=placement.local_engines, addresses=(FAR,), placement="separate", devices=(),
        tensor_parallel_size=placement.tensor_parallel,
    )  # fmt: skip
    machine = recipe.machine
    target = EngineRequirements(
        dtype=machine.dtype, device=machine.device, gathers_layers=placement.learner_devices > 1
    )
    return not engine.reason_for_file(EngineAccess(hosts=("HOST",), nccl_hosts=("HOST",)), target)


def serve_words(recipe: Recipe, placement: DevicePlacement) -> list[str]:
    """The command that starts the engines of another host, on all of its devices, with the recipe's settings."""
    machine, split = recipe.machine, placement.tensor_parallel
    engine = recipe.engine if isinstance(recipe.engine, Native) else Native()
    vllm = []
    if isinstance(engine, Vllm):
        vllm = ["--engine", "Vllm", "--engine-python", DEFAULT_PYTHON]
        engine = replace(engine, tensor_parallel_size=split)
    fields = {name: value for name, value in engine.changed_settings.items() if name in engine.served_settings}
    words = {"--replicas": placement.host_devices // split, "--device": machine.device, "--dtype": machine.dtype}
    settings = {"--seed": (recipe.seed, 0), "--threads": (machine.threads, Machine().threads)}
    words |= {name: value for name, (value, given) in settings.items() if value != given}
    words |= {f"--engine.{name}": str(value).lower() for name, value in fields.items()}
    words |= {"--listen": "0.0.0.0:7000", "--secret-file": "secret", "--key": "key.pem"}
    return ["groupwise", "serve", recipe.model, *vllm, *(word for item in words.items() for word in map(str, item))]
