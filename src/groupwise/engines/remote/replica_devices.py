"""The devices of a host's processes: a GPU for each rank of the learner, and the GPUs that they leave for engines."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from groupwise.core import Usage
from groupwise.core.counted import counted
from groupwise.engines.remote.replica import ReplicaProgram

VISIBLE = "CUDA_VISIBLE_DEVICES"


def rank_devices(ranks: int, first: str, count: int) -> tuple[str, ...]:
    """The device of each rank on a host with `count` GPUs: `first` for rank 0, and the next ones.

    `Usage` for more ranks than GPUs.

    >>> rank_devices(3, "cuda:2", 4), rank_devices(2, "cpu", 0)
    (('cuda:2', 'cuda:3', 'cuda:0'), ('cpu', 'cpu'))
    """
    if not first.startswith("cuda"):
        return (first,) * ranks
    if ranks > max(count, 1):
        what = f"cluster.ranks is {ranks}, and this host has {counted(count, 'GPU')}: each process needs its own"
        raise Usage(what, fix="lower it, or use several hosts: cluster.launch external")
    return tuple(f"cuda:{(gpu_index(first) + rank) % max(count, 1)}" for rank in range(ranks))


def replica_devices(
    replicas: int, learner: str, count: int, *, ranks: int = 1, colocated: bool = False, size: int = 1
) -> tuple[str, ...]:
    """The device of each replica on a host with `count` GPUs. `Usage` for more replicas than GPUs that are free.

    Each gets `size` GPUs that no rank of the learner has. If there are none, or `colocated`, engines are on the ranks'
    GPUs.

    >>> replica_devices(2, "cuda:1", 4), replica_devices(2, "cuda", 4, ranks=2)
    (('cuda:0', 'cuda:2'), ('cuda:2', 'cuda:3'))
    >>> replica_devices(1, "cuda", 1), replica_devices(1, "cuda:1", 4, colocated=True), replica_devices(2, "cpu", 0)
    (('cuda:0',), ('cuda:1',), ('cpu', 'cpu'))
    >>> replica_devices(2, "cuda", 6, size=2)
    ('cuda:1,2', 'cuda:3,4')
    """
    if not learner.startswith("cuda"):
        return (learner,) * replicas
    learners = [gpu_index(device) for device in rank_devices(ranks, learner, count)]
    others = [] if colocated else [index for index in range(count) if index not in learners]
    free = others or learners
    if replicas * size > len(free):
        what = f"engine.replicas is {replicas}, and the learner leaves {len(free)} of {max(count, 1)} GPUs for engines"
        evidence = f"each engine needs {counted(size, 'separate GPU')}; the learner is on {device_name(learners)}"
        raise Usage(what, evidence=evidence, fix=f"use --engine.replicas {len(free) // size or 1}")
    return tuple(device_name(free[first : first + size]) for first in range(0, replicas * size, size))


def served_devices(engines: int, first: str, count: int, *, size: int) -> tuple[str, ...]:
    """The device of each engine of `groupwise serve`, of `size` GPUs each: `first` and the next ones.

    `Usage` for more GPUs than this host has.

    >>> served_devices(2, "cuda:2", 6, size=2), served_devices(2, "cpu", 0, size=2)
    (('cuda:2,3', 'cuda:4,5'), ('cpu', 'cpu'))
    """
    if not first.startswith("cuda"):
        return (first,) * engines
    if engines * size > max(count, 1):
        what = f"{counted(engines, 'engine')} of {counted(size, 'GPU')}, and this host has {counted(count, 'GPU')}"
        raise Usage(what, fix="lower the replicas of groupwise serve, or engine.tensor_parallel_size")
    gpus = [gpu_index(name) for name in rank_devices(engines * size, first, count)]
    return tuple(device_name(gpus[start : start + size]) for start in range(0, len(gpus), size))


def check_device_names(devices: Sequence[str], replicas: int, size: int = 1) -> None:
    """ValueError unless there are none, or the name of `size` GPUs for each replica.

    >>> check_device_names(["cuda:1", "cuda:2"], 2)
    >>> check_device_names(["cuda:2,3"], 1, 2)
    """
    if devices and len(devices) != replicas:
        raise ValueError(f"devices has {counted(len(devices), 'name')} for replicas = {replicas}\nname one for each")
    example = device_name(range(1, 1 + size))
    for name in devices:
        if not re.fullmatch(r"cuda:\d{1,4}(,\d{1,4})*", name) or len(set(gpu_indices(name))) != size:
            raise ValueError(f"devices has {name!r}\nname {counted(size, 'GPU')} for each replica, such as {example}")


def named_devices(devices: tuple[str, ...], learner: str, count: int) -> tuple[str, ...]:
    """These devices, if this host has them. `Usage` if it does not, or if the learner computes on a CPU.

    >>> named_devices(("cuda:2", "cuda:2"), "cuda:0", 4)
    ('cuda:2', 'cuda:2')
    """
    if not learner.startswith("cuda"):
        what = f"engine.devices names GPUs, and the learner computes on {learner}"
        raise Usage(what, fix="leave out engine.devices, or use --machine.device cuda")
    if missing := sorted({name for name in devices if max(gpu_indices(name)) >= count}):
        what = f"engine.devices names {', '.join(missing)}, and this host has {counted(count, 'GPU')}"
        raise Usage(what, fix=f"name GPUs up to cuda:{max(count - 1, 0)}, or leave out engine.devices")
    return devices


def gpu_index(device: str) -> int:
    """The index of a GPU among those that this process sees.

    >>> gpu_index("cuda:3"), gpu_index("cuda")
    (3, 0)
    """
    return gpu_indices(device)[0]


def gpu_indices(device: str) -> list[int]:
    """The indices of the GPUs of an engine among those that this process sees. `Usage` for a name without one.

    >>> gpu_indices("cuda:2,3"), gpu_indices("cuda")
    ([2, 3], [0])
    """
    indices = (device.partition(":")[2] or "0").split(",")
    if not all(map(str.isdecimal, indices)):
        raise Usage(f"{device!r} names no GPU", fix="use cuda, or cuda:1 for the second GPU")
    return [int(index) for index in indices]


def device_name(gpus: Sequence[int]) -> str:
    """The name of these GPUs.

    >>> device_name([2, 3])
    'cuda:2,3'
    """
    return f"cuda:{','.join(map(str, gpus))}"


def gpu_count() -> int:
    """The number of GPUs that this process sees."""
    return torch.cuda.device_count()


def visible_device(device: str, visible: str = "") -> dict[str, str]:
    """The environment variable of a process that sees these GPUs alone, as its first ones; none for the CPU.

    `visible` are the GPUs that this process sees, by default as its own environment names them.

    >>> visible_device("cuda:1", "5,GPU-7a"), visible_device("cuda:0,1", "5,7"), visible_device("cpu")
    ({'CUDA_VISIBLE_DEVICES': 'GPU-7a'}, {'CUDA_VISIBLE_DEVICES': '5,7'}, {})
    """
    if not device.startswith("cuda"):
        return {}
    visible = visible or os.environ.get(VISIBLE, "")
    names = visible.split(",") if visible else []
    indices = gpu_indices(device)
    return {VISIBLE: ",".join(names[index].strip() if index < len(names) else str(index) for index in indices)}


def on_device(program: ReplicaProgram, device: str) -> ReplicaProgram:
    """The program on one device, or on several GPUs. Its process sees no others, so they are the first ones there."""
    if not device.startswith("cuda"):
        return program
    given: Mapping[str, str] = program.environment_variables
    environment = {**given, **visible_device(device, given.get(VISIBLE, ""))}
    return replace(program, settings=replace(program.settings, device="cuda:0"), environment_variables=environment)
