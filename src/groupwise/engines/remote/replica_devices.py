"""The devices of engines in child processes: the GPUs that the learner leaves, one for each engine."""

import os
from dataclasses import replace

import torch

from groupwise.core import Usage
from groupwise.engines.remote.replica import ReplicaProgram

VISIBLE = "CUDA_VISIBLE_DEVICES"


def replica_devices(replicas: int, learner: str, count: int, *, colocated: bool = False) -> tuple[str, ...]:
    """The device of each replica on a host with `count` GPUs. `Usage` for more replicas than GPUs that are free.

    Each gets a GPU that the learner does not have. With one GPU, or `colocated`, an engine is on the learner's.

    >>> replica_devices(2, "cuda:1", 4)
    ('cuda:0', 'cuda:2')
    >>> replica_devices(1, "cuda", 1), replica_devices(1, "cuda:1", 4, colocated=True), replica_devices(2, "cpu", 0)
    (('cuda:0',), ('cuda:1',), ('cpu', 'cpu'))
    """
    if not learner.startswith("cuda"):
        return (learner,) * replicas
    own = gpu_index(learner)
    others = () if colocated else tuple(f"cuda:{index}" for index in range(count) if index != own)
    free = others or (f"cuda:{own}",)
    if replicas > len(free):
        what = f"engine.replicas is {replicas}, and the learner leaves {len(free)} of {max(count, 1)} GPUs for engines"
        evidence = f"each engine needs a separate GPU; the learner is on {learner}"
        raise Usage(what, evidence=evidence, fix=f"use --engine.replicas {len(free)}")
    return free[:replicas]


def gpu_index(device: str) -> int:
    """The index of a GPU among those that this process sees.

    >>> gpu_index("cuda:3"), gpu_index("cuda")
    (3, 0)
    """
    return int(device.partition(":")[2] or 0)


def gpu_count() -> int:
    """The number of GPUs that this process sees."""
    return torch.cuda.device_count()


def on_device(program: ReplicaProgram, device: str) -> ReplicaProgram:
    """The program on one device. Its process sees no other GPU, so it is the first one there."""
    if not device.startswith("cuda"):
        return program
    visible = program.environment_variables.get(VISIBLE) or os.environ.get(VISIBLE, "")
    names = visible.split(",") if visible else []
    index = gpu_index(device)
    name = names[index].strip() if index < len(names) else str(index)
    environment = {**program.environment_variables, VISIBLE: name}
    return replace(program, settings=replace(program.settings, device="cuda:0"), environment_variables=environment)
