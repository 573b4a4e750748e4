"""Ray as the launcher of a run's other processes. The only file that imports Ray.

Ray holds the places, one bundle of a placement group for each process. In each bundle an actor, a `HeldProcess`, starts
the process, has its output, and ends it. Samples, weights and gradients go over our own connections. A lost replica is
started again by its fleet, which bounds that, in the same bundle; Ray moves the bundles of a lost node to another one.
"""

import asyncio
import json
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from groupwise.cluster.held_process import HeldProcess
from groupwise.cluster.processes import GRACE, Death, Processes
from groupwise.config.devices import device_of
from groupwise.config.recipe import Recipe
from groupwise.data import EngineLost, MissingRequirement, Usage, WorkerLost
from groupwise.engines.remote import Remote
from groupwise.engines.replica import START, Program
from groupwise.engines.replica_tls import MODULE, printed_address
from groupwise.engines.secret import VARIABLE
from groupwise.engines.tls import TlsAddress

ADDRESS = "RAY_ADDRESS"
REACH = 10.0
"""Seconds in which the head of a cluster must accept a connection."""
PLACED = 60.0
"""Seconds in which Ray must find the places of a run's processes."""
REPLY = 30.0
"""Seconds in which an actor must answer, once it has started."""
LOOK = 0.1
"""Seconds between two looks at the output of a process that starts."""


def library() -> Any:
    """The module of Ray. `MissingRequirement` without it."""
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
class Needs:
    """The resources of one process."""

    cpus: int
    gpus: int = 0

    @classmethod
    def of_replica(cls, recipe: Recipe) -> "Needs":
        """Those of an engine: the recipe's threads, and a GPU if its device is one."""
        return cls(recipe.machine.threads, int(device_of(recipe.machine.device).startswith("cuda")))

    @property
    def bundle(self) -> dict[str, float]:
        """As Ray names them."""
        return {"CPU": float(self.cpus), **({"GPU": float(self.gpus)} if self.gpus else {})}


class Places:
    """A placement group of `count` equal bundles. `close`, or the end of this process, frees them.

    If Ray finds no place for them within `PLACED` seconds, `Usage` lists the nodes and their resources.
    """

    def __init__(self, ray: Any, what: str, count: int, needs: Needs, strategy: str) -> None:
        self.ray, self.needs = ray, needs
        self.group = ray.util.placement_group([needs.bundle] * count, strategy=strategy)
        self._end = weakref.finalize(self, _remove, ray, self.group)
        if not self.group.wait(PLACED):
            evidence = "\n".join([f"asked: {count} x {described(needs.bundle)}", *free(ray)])
            self.close()
            fix = "ask for fewer processes or machine.threads, add nodes, or wait until other jobs end"
            raise Usage(f"Ray found no place for {what} within {PLACED:g} s", evidence=evidence, fix=fix)

    def host(self, index: int) -> str:
        """The address of the node that has a bundle. `EngineLost` while none has it."""
        node = self.ray.util.placement_group_table(self.group)["bundles_to_node_id"].get(index)
        for alive in self.ray.nodes():
            if alive["NodeID"] == node and alive["Alive"]:
                return alive["NodeManagerAddress"]
        raise EngineLost(f"no node of Ray has the place {index}", fix="wait until Ray has moved it to another node")

    def start(self, index: int, arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
        """The actor of a new process in a bundle. The process ends with it."""
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=index
        )
        actor = self.ray.remote(HeldProcess).options(
            num_cpus=self.needs.cpus, num_gpus=self.needs.gpus, max_restarts=0, scheduling_strategy=strategy
        )
        threads = {"OMP_NUM_THREADS": str(self.needs.cpus)}
        return actor.remote(["-P", *arguments], {**threads, **environment}, bound=True)

    def end(self, actor: Any) -> Death | None:
        """End an actor with its process; returns how that had ended before, None if it had not."""
        try:
            code, lines = self.ray.get(actor.end.remote(GRACE), timeout=REPLY)
            return None if code is None else Death(code, lines)
        except self.ray.exceptions.RayError as error:
            return lost(error)
        finally:
            with suppress(self.ray.exceptions.RayError, ValueError):
                self.ray.kill(actor)

    def close(self) -> None:
        """Free the bundles; processes in them are killed."""
        self._end()


def _remove(ray: Any, group: Any) -> None:
    if ray.is_initialized():  # otherwise Ray has freed them, and this call would start a cluster
        ray.util.remove_placement_group(group)


def lost(error: Exception) -> Death:
    """The end of a process whose actor Ray has lost, with Ray's cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Death(0, lines, cause=type(error).__name__)


def described(resources: Mapping[str, float]) -> str:
    """Resources in words.

    >>> described({"CPU": 2.0, "GPU": 1.0, "memory": 1e9})
    '2 CPU, 1 GPU'
    """
    return ", ".join(f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if resources.get(name)) or "no CPU"


def free(ray: Any) -> list[str]:
    """Lines about the resources of each node, and how much of all is free."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    lines = [f"node {node['NodeManagerAddress']}: {described(node['Resources'])}" for node in nodes]
    return [*lines, f"free on {len(nodes)} nodes: {described(ray.available_resources())}"]


class RayProcesses(Processes):
    """A context with Python processes on the nodes of a Ray cluster, by name. `environment` is added to the node's."""

    def __init__(self, arguments: Mapping[str, Sequence[str]], environment: Mapping[str, str], needs: Needs) -> None:
        self._arguments, self._environment, self._needs = arguments, dict(environment), needs
        self._actors: dict[str, Any] = {}

    def __enter__(self) -> "RayProcesses":
        self._ray = connected()
        names = ", ".join(self._arguments)
        self._places = Places(self._ray, names, len(self._arguments), self._needs, "PACK")
        for index, (name, arguments) in enumerate(self._arguments.items()):
            self._actors[name] = self._places.start(index, arguments, self._environment)
        try:
            self._ray.get([actor.pid.remote() for actor in self._actors.values()], timeout=START)
        except self._ray.exceptions.RayError as error:
            self.__exit__(None, None, None)
            raise WorkerLost(f"Ray did not start {names}", evidence="\n".join(lost(error).lines)) from error
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for actor in self._actors.values():
            self._places.end(actor)
        self._places.close()

    @property
    def names(self) -> Sequence[str]:
        """The names of the processes."""
        return list(self._arguments)

    def deaths(self) -> Mapping[str, Death]:
        """The processes that have ended, by name, and those whose actor is lost or does not answer."""
        found = {name: self._death(actor) for name, actor in self._actors.items()}
        return {name: death for name, death in found.items() if death is not None}

    def _death(self, actor: Any) -> Death | None:
        try:
            code, lines = self._ray.get(actor.status.remote(), timeout=REPLY)
        except self._ray.exceptions.RayError as error:
            return lost(error)
        return None if code is None else Death(code, lines)


class RayReplica(Remote):
    """A `Remote` whose process an actor of Ray holds."""

    places: Places
    actor: Any
    on_end: Callable[[], None]
    ending = ""

    def end(self) -> str:
        """End the process with its actor, once; returns how it ended, with its last lines of output."""
        self.close()
        if not self.ending:
            death = self.places.end(self.actor)
            self.ending = "\n".join([f"its process {death}", *death.lines]) if death else self.cause
            self.on_end()
        return self.ending


class RayReplicas:
    """Starts the engines of a recipe on the nodes of a Ray cluster: `Served.build(..., launch=RayReplicas(recipe))`.

    Each run makes a secret for its engines, which Ray takes to their nodes. The places are found at the first start.
    """

    def __init__(self, recipe: Recipe, replicas: int) -> None:
        self._ray, self._needs, self._replicas = connected(), Needs.of_replica(recipe), replicas
        self._model = str(Path(recipe.model).absolute()) if os.path.isdir(recipe.model) else recipe.model
        self._secret = secrets.token_hex(32)
        self._places: Places | None = None
        self._count = 0
        self._lock = threading.Lock()

    async def __call__(self, program: Program, number: int, deadline: float) -> RayReplica:
        """Start a replica, and connect to it. `EngineLost` with its last lines if it does not start."""
        self._count += 1
        try:
            return await self._started(await asyncio.to_thread(self._placed), program, number, deadline)
        except BaseException:
            self._free()
            raise

    async def _started(self, places: Places, program: Program, number: int, deadline: float) -> RayReplica:
        settings = replace(program.settings, directory=self._model)
        arguments = ["-m", MODULE, json.dumps(asdict(settings)), places.host(number)]
        actor = places.start(number, arguments, {VARIABLE: self._secret})
        try:
            address = await self._address(actor, number)
            replica = await RayReplica.connect(
                address, secret=self._secret.encode(), deadline=deadline, expected=program.identity
            )
        except BaseException:
            places.end(actor)
            raise
        replica.places, replica.actor, replica.on_end = places, actor, self._ended
        return replica

    def _ended(self) -> None:
        """A replica has ended. Its place is kept for the next one, unless the run ends and cancels its tasks."""
        task = asyncio.current_task()
        self._free(keep=task is None or not task.cancelling())

    def _free(self, *, keep: bool = False) -> None:
        """Count a replica less. Without any, free the places unless they are to `keep`; a next start asks again."""
        self._count -= 1
        if not (self._count or keep) and self._places is not None:
            self._places.close()
            self._places = None

    def _placed(self) -> Places:
        with self._lock:
            if self._places is None:
                self._places = Places(self._ray, f"{self._replicas} engines", self._replicas, self._needs, "SPREAD")
            return self._places

    async def _address(self, actor: Any, number: int) -> TlsAddress:
        """Where the engine of a new process listens, once it does."""
        failed = f"replica {number} did not start"
        try:
            async with asyncio.timeout(START):
                while True:
                    code, lines = await actor.status.remote()
                    if code is not None:
                        death = Death(code, lines)
                        raise EngineLost(failed, evidence="\n".join([f"its process {death}", *lines]))
                    if (address := printed_address(lines)) is not None:
                        return address
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise EngineLost(failed, evidence=f"it printed no address within {START:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise EngineLost(failed, evidence="\n".join(lost(error).lines)) from error


def node_address() -> str:
    """The address of this host in the cluster."""
    return connected().util.get_node_ip_address()
