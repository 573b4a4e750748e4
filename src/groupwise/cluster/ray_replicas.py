"""The replicas of a fleet, as processes on the nodes of a Ray cluster.

A lost replica is started again by its fleet, which bounds that, in the same bundle; Ray moves the bundles of a lost
node to another one.
"""

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from groupwise.cluster.processes import GRACE, ProcessEnd
from groupwise.cluster.ray import Bundles, ProcessResources, connected, lost
from groupwise.config.recipe import Recipe
from groupwise.core import EngineLost
from groupwise.engines.remote.remote_engine import RemoteEngine
from groupwise.engines.remote.replica import ReplicaProgram
from groupwise.engines.remote.secret import VARIABLE
from groupwise.engines.remote.tls import TlsAddress
from groupwise.engines.remote.tls_replica import printed_address

LOOK = 0.1
"""Seconds between two looks at the output of a process that starts."""


class RayReplica(RemoteEngine):
    """A `RemoteEngine` whose process an actor of Ray holds."""

    bundles: Bundles
    actor: Any
    on_end: Callable[[], None]
    ending = ""

    def end(self) -> str:
        """End the process with its actor, once; returns how it ended, with its last lines of output."""
        patience = 0.0 if self.cause else GRACE  # the run waits
        self.close()
        if not self.ending:
            death = self.bundles.end(self.actor, patience)
            self.ending = "\n".join([f"its process {death}", *death.last_lines]) if death else self.cause
            self.on_end()
        return self.ending


class RayReplicaLauncher:
    """Starts a recipe's engines on the nodes of a Ray cluster: `Served.build(..., launch=RayReplicaLauncher(recipe))`.

    Each run makes a secret for its engines, which Ray takes to their nodes. Ray finds the nodes at the first start.
    """

    def __init__(self, recipe: Recipe, replicas: int) -> None:
        self._ray, self._needs, self._replicas = connected(), ProcessResources.of_replica(recipe), replicas
        self._model = str(Path(recipe.model).absolute()) if os.path.isdir(recipe.model) else recipe.model
        self._secret = secrets.token_hex(32)
        self._bundles: Bundles | None = None
        self._count = 0
        self._lock = threading.Lock()

    async def __call__(self, program: ReplicaProgram, index: int, deadline: float) -> RayReplica:
        """Start a replica, and connect to it. `EngineLost` with its last lines if it does not start."""
        self._count += 1
        try:
            return await self._started(await asyncio.to_thread(self._bundles_of_run), program, index, deadline)
        except BaseException:
            self._free()
            raise

    async def _started(self, bundles: Bundles, program: ReplicaProgram, index: int, deadline: float) -> RayReplica:
        # On its node, a process sees the GPU of its bundle only, which is the first one there.
        device = "cuda:0" if self._needs.gpus else program.settings.device
        settings = replace(program.settings, model_directory=self._model, device=device)
        host = await asyncio.to_thread(bundles.host, index)
        arguments = ["-m", *program.remote_module_arguments, json.dumps(asdict(settings)), host]
        actor = bundles.start(index, arguments, {VARIABLE: self._secret})
        try:
            address = await self._address(actor, index, program.start_seconds)
            replica = await RayReplica.connect(
                address, secret=self._secret.encode(), deadline=deadline, expected=program.required_identity
            )
        except BaseException:
            bundles.end(actor)
            raise
        replica.bundles, replica.actor, replica.on_end = bundles, actor, self._ended
        return replica

    def _ended(self) -> None:
        """A replica has ended. Its bundle is kept for the next one, unless the run ends and cancels its tasks."""
        task = asyncio.current_task()
        self._free(keep=task is None or not task.cancelling())

    def _free(self, *, keep: bool = False) -> None:
        """Count a replica less. Without any, free the bundles unless `keep`; a next start asks again."""
        self._count -= 1
        if not (self._count or keep) and self._bundles is not None:
            self._bundles.close()
            self._bundles = None

    def _bundles_of_run(self) -> Bundles:
        with self._lock:
            if self._bundles is None:
                self._bundles = Bundles(self._ray, f"{self._replicas} engines", self._replicas, self._needs, "SPREAD")
            return self._bundles

    async def _address(self, actor: Any, index: int, seconds: float) -> TlsAddress:
        """Where the engine of a new process listens, once it does. `EngineLost` after `seconds`."""
        failed = f"replica {index} did not start"
        try:
            async with asyncio.timeout(seconds):
                while True:
                    code, lines = await actor.status.remote()
                    if code is not None:
                        death = ProcessEnd(code, lines)
                        raise EngineLost(failed, evidence="\n".join([f"its process {death}", *lines]))
                    if (address := printed_address(lines)) is not None:
                        return address
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            raise EngineLost(failed, evidence=f"it printed no address within {seconds:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise EngineLost(failed, evidence="\n".join(lost(error).last_lines)) from error
