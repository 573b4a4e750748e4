"""The error of a node without room for rank 0, with a pretended Ray whose nodes are in use."""

from types import SimpleNamespace
from typing import Any

import pytest

from groupwise.cluster.ray import ProcessResources, hold
from groupwise.core import Usage


class RayError(Exception):
    """Ray's own error: no actor in time."""


def busy_ray(free: dict[str, float]) -> Any:
    """Two nodes, `here` and one that has died; no actor finds room."""

    def late(*_: object, **__: object) -> None:
        raise RayError

    actor = SimpleNamespace(gpu=SimpleNamespace(remote=lambda: None))
    options = SimpleNamespace(remote=lambda: actor)
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    node = {"NodeID": "here", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2.0, "GPU": 1.0}}
    return SimpleNamespace(
        remote=lambda _: SimpleNamespace(options=lambda **_: options),
        util=SimpleNamespace(scheduling_strategies=strategies),
        get=late, exceptions=SimpleNamespace(RayError=RayError), available_resources=lambda: free,
        nodes=lambda: [node, node | {"NodeID": "there", "NodeManagerAddress": "10.0.0.2"}, node | {"Alive": False}],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("needs", "asked", "fix", "absent"),
    [
        (ProcessResources(1), "1 CPU, for machine.threads", "ray start --num-cpus N", ("machine.threads 1", "cuda")),
        (ProcessResources(2), "2 CPU, for machine.threads", "--machine.threads 1", ("cuda",)),
        (ProcessResources(0, 1), "1 GPU, for machine.device cuda:0", "--machine.device cuda:1", ("threads", "CPU")),
    ],
)
def test_a_node_without_room_for_rank_0_is_named_with_what_helps(
    needs: ProcessResources, asked: str, fix: str, absent: tuple[str, ...]
) -> None:
    with pytest.raises(Usage) as caught:
        hold(busy_ray({"CPU": 1.0}), "here", [], needs, "cuda:0")
    assert caught.value.evidence.splitlines() == [
        f"asked: {asked}",
        "node 10.0.0.1 (this one): 2 CPU, 1 GPU",
        "node 10.0.0.2: 2 CPU, 1 GPU",
        "free on 2 nodes: 1 CPU",
    ]
    assert fix in caught.value.fix and not any(word in caught.value.fix for word in absent)
