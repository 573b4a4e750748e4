"""Runs the processes of a run on the nodes of a Ray cluster. The only file that imports Ray.

A placement group has one bundle for each process. In each bundle an actor, a `ChildProcess`, starts
the process, has its output, and ends it. Samples, weights and gradients go over our own connections. Rank 0 is the
process that connects; an actor holds its resources on its node.
"""

import os
import socket
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from groupwise.cluster.child_process import ChildProcess
from groupwise.cluster.processes import GRACE, ProcessEnd
from groupwise.cluster.reserved_resources import ReservedResources
from groupwise.config.recipe import Recipe
from groupwise.config.resolve_devices import device_of
from groupwise.core import EngineLost, MissingRequirement, Usage, counted

ADDRESS = "RAY_ADDRESS"
RECONNECT, DAYS = "RAY_gcs_rpc_server_reconnect_timeout_s", str(30 * 86400)
"""Ray's variable with the seconds without its head after which it ends this process, and ours: a run ends itself."""
REACH = 10.0
"""Seconds in which the head of a cluster must accept a connection."""
PLACED = 60.0
"""Seconds in which Ray must find nodes for a run's processes."""
REPLY = 30.0
"""Seconds in which an actor must answer, once it has started."""
ENDED = 5.0
"""Seconds in which an actor must answer that its process has ended. After that, Ray kills the actor."""


def library() -> Any:
    """The module of Ray. `MissingRequirement` without it."""
    os.environ.setdefault(RECONNECT, DAYS)  # it is read at the import
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        fix = "pip install 'groupwise[ray]', here and on each node; or use --cluster.launch local"
        raise MissingRequirement("cluster.launch is ray, and Ray is not installed", fix=fix) from error
    return ray


def connected() -> Any:
    """The module of Ray, connected to the cluster of RAY_ADDRESS, or to that which runs on this host.

    `MissingRequirement` without Ray, `Usage` without a cluster.
    """
    ray = library()
    if ray.is_initialized():
        return ray
    address = os.environ.get(ADDRESS, "auto")
    fix = f"start a cluster with ray start --head, and set {ADDRESS} to HOST:PORT of its head"
    try:
        if address != "auto":
            check_reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this host" if address == "auto" else f"at {address}"
        evidence = str(error).partition("\n")[0]
        raise Usage(f"no Ray cluster answers {where}", evidence=evidence, fix=fix) from error
    return ray


def check_reachable(address: str) -> None:
    """OSError or ValueError unless something listens at HOST:PORT. Ray itself would end this process after a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError(f"{ADDRESS} is {address!r}, not HOST:PORT")
    socket.create_connection((host, int(port)), timeout=REACH).close()


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """The resources of one process."""

    cpus: int
    gpus: int = 0

    @classmethod
    def of_process(cls, recipe: Recipe, devices: int = 1) -> "ProcessResources":
        """The needs of an engine or a rank: for each of its devices the recipe's threads, and a GPU if it is one."""
        gpus = devices if device_of(recipe.machine.device).startswith("cuda") else 0
        return cls(recipe.machine.threads * devices, gpus)

    @property
    def bundle(self) -> dict[str, float]:
        """As Ray names them."""
        return {"CPU": float(self.cpus), **({"GPU": float(self.gpus)} if self.gpus else {})}


class Bundles:
    """A placement group of `count` equal bundles. `close`, or the end of this process, frees them.

    If Ray finds no nodes for them within `PLACED` seconds, `Usage` lists the nodes and their resources. `EngineLost` if
    the head of the cluster is gone.
    """

    def __init__(self, ray: Any, what: str, count: int, needs: ProcessResources, strategy: str) -> None:
        self.ray, self.needs, self.head = ray, needs, ray.get_runtime_context().gcs_address
        check_head(self.head)
        self.group = ray.util.placement_group([needs.bundle] * count, strategy=strategy)
        self._end = weakref.finalize(self, _remove, ray, self.group, self.head)
        if not self.group.wait(PLACED):
            evidence = "\n".join([f"asked: {count} x {described(needs.bundle)}", *free(ray)])
            self.close()
            fix = "ask for fewer processes or machine.threads, add nodes, or wait until other jobs end"
            raise Usage(f"Ray found no nodes for {what} within {PLACED:g} s", evidence=evidence, fix=fix)

    def host(self, index: int) -> str:
        """The address of the node that has a bundle. `EngineLost` while none has it, or if Ray's head is gone."""
        check_head(self.head)
        node = self.ray.util.placement_group_table(self.group)["bundles_to_node_id"].get(index)
        for alive in self.ray.nodes():
            if alive["NodeID"] == node and alive["Alive"]:
                return alive["NodeManagerAddress"]
        raise EngineLost(f"no node of Ray has the bundle {index}", fix="wait until Ray has moved it to another node")

    def start(self, index: int, arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
        """The actor of a new process in a bundle. The process ends with it."""
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=index
        )
        actor = self.ray.remote(ChildProcess).options(
            num_cpus=self.needs.cpus, num_gpus=self.needs.gpus, max_restarts=0, scheduling_strategy=strategy
        )
        threads = {"OMP_NUM_THREADS": str(self.needs.cpus)}
        return actor.remote(["-P", *arguments], {**threads, **environment}, bound=True)

    def end(self, actor: Any, patience: float = GRACE) -> ProcessEnd | None:
        """End an actor with its process, which is killed after `patience` seconds.

        Returns how the process had ended before, None if it had not.
        """
        try:
            code, lines = self.ray.get(actor.end.remote(patience), timeout=patience + ENDED)
            return None if code is None else ProcessEnd(code, lines)
        except self.ray.exceptions.RayError as error:
            return lost(error)
        finally:
            with suppress(self.ray.exceptions.RayError, ValueError):
                if is_reachable(self.head):
                    self.ray.kill(actor)

    def close(self) -> None:
        """Free the bundles; processes in them are killed."""
        self._end()


@contextmanager
def reserved(recipe: Recipe) -> Iterator[None]:
    """A context in which rank 0, this process, has its CPUs and its GPU in Ray's accounts; without Ray, nothing.

    So Ray gives the GPU of rank 0 to no engine and no other rank. Of a node with fewer CPUs it takes all. `Usage` if
    this node has no free GPU, or if the GPU of `machine.device` is in use.
    """
    if recipe.cluster.launch != "ray":
        yield
        return
    ray, needs, device = connected(), ProcessResources.of_process(recipe), device_of(recipe.machine.device)
    head, node = ray.get_runtime_context().gcs_address, ray.get_runtime_context().get_node_id()
    (cpus,) = [each["Resources"].get("CPU", 0) for each in ray.nodes() if each["NodeID"] == node]
    held: list[Any] = []
    try:
        hold(ray, node, held, ProcessResources(min(needs.cpus, int(cpus))))
        if needs.gpus:
            hold_gpu(ray, node, held, wanted_gpu(device), device)
        yield
    finally:
        if is_reachable(head):
            for actor in held:
                ray.kill(actor)


def hold_gpu(ray: Any, node: str, held: list[Any], wanted: str, device: str) -> None:
    """Hold the GPU `wanted` of a node. Ray chooses GPUs: others are held meanwhile, and freed."""
    others: list[Any] = []
    try:
        while hold(ray, node, others, ProcessResources(0, 1), device) != wanted:
            pass
        held.append(others.pop())
    finally:
        for actor in others:
            ray.kill(actor)


def hold(ray: Any, node: str, held: list[Any], needs: ProcessResources, device: str = "cpu") -> str:
    """Hold resources of a node by an actor, which is added to `held`. Returns the name of its GPU, if it has one."""
    actor = ray.remote(ReservedResources).options(
        num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0,
        scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote()  # fmt: skip
    held.append(actor)
    try:
        return ray.get(actor.gpu.remote(), timeout=PLACED)
    except ray.exceptions.RayError as error:
        what = f"Ray has no {described(needs.bundle)} on this node for rank 0 within {PLACED:g} s"
        field = f"machine.device {device}" if needs.gpus else "machine.threads"
        evidence = [f"asked: {described(needs.bundle)}, for {field}", *free(ray, node)]
        raise Usage(what, evidence="\n".join(evidence), fix=room_for_rank_0(needs)) from error


def room_for_rank_0(needs: ProcessResources) -> str:
    """What a user does if a node has no room for rank 0."""
    if needs.gpus:
        return "wait until other jobs end, or name a GPU that is free, such as --machine.device cuda:1"
    fewer = ", use --machine.threads 1" if needs.cpus > 1 else ""
    more = "start the run on a node with a free CPU, or give this one more: ray start --num-cpus N"
    return f"wait until other jobs end{fewer}, {more}"


def wanted_gpu(device: str, visible: str | None = None) -> str:
    """The name that Ray has for a GPU of this process; `visible` is its CUDA_VISIBLE_DEVICES.

    >>> wanted_gpu("cuda", ""), wanted_gpu("cuda:1", "4,6")
    ('0', '6')
    """
    index = int(device.partition(":")[2] or 0)
    names = (os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible).split(",")
    return names[index] if names[0] and index < len(names) else str(index)


def check_head(head: str) -> None:
    """`EngineLost` if the head of a cluster does not accept connections."""
    if not is_reachable(head):
        raise EngineLost(head_lost(head), fix="start a cluster again, and continue with groupwise resume")


def head_lost(head: str) -> str:
    """The message about a head that accepts no connection."""
    return f"the head of the Ray cluster, {head}, does not answer"


def is_reachable(head: str) -> bool:
    """Whether the head of a cluster accepts connections. Without it, some of Ray's calls do not return."""
    try:
        check_reachable(head)
    except OSError:
        return False
    return True


def _remove(ray: Any, group: Any, head: str) -> None:
    if ray.is_initialized() and is_reachable(head):  # otherwise Ray has freed them, and this call would start a cluster
        ray.util.remove_placement_group(group)


def lost(error: Exception, head: str = "") -> ProcessEnd:
    """The end of a process whose actor Ray has lost, with Ray's cause; with a `head`, whether that is lost is found."""
    if head and not is_reachable(head):
        return ProcessEnd(0, launcher_message=head_lost(head))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ProcessEnd(0, lines, launcher_message=type(error).__name__)


def described(resources: Mapping[str, float]) -> str:
    """Resources in words.

    >>> described({"CPU": 2.0, "GPU": 1.0, "memory": 1e9})
    '2 CPU, 1 GPU'
    """
    return ", ".join(f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)) or "no CPU"


def free(ray: Any, this: str = "") -> list[str]:
    """Lines about the resources of each node, with a mark at the node `this`, and how much of all is free."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    lines = [
        f"node {node['NodeManagerAddress']}{' (this one)' if node['NodeID'] == this else ''}: "
        f"{described(node['Resources'])}"
        for node in nodes
    ]
    return [*lines, f"free on {counted(len(nodes), 'node')}: {described(ray.available_resources())}"]


def node_address() -> str:
    """The address of this host in the cluster."""
    return connected().util.get_node_ip_address()
