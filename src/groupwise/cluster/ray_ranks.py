"""The ranks above 0 of a run, as processes on the nodes of a Ray cluster."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from groupwise.cluster.processes import NamedProcesses, ProcessEnd
from groupwise.cluster.ray import REPLY, Bundles, ProcessResources, connected, lost
from groupwise.core import WorkerLost
from groupwise.engines.remote.replica import START


class RayProcesses(NamedProcesses):
    """A context with Python processes on the nodes of a Ray cluster, by name. `environment` is added to the node's."""

    def __init__(
        self, arguments: Mapping[str, Sequence[str]], environment: Mapping[str, str], needs: ProcessResources
    ) -> None:
        self._arguments, self._environment, self._needs = arguments, dict(environment), needs
        self._actors: dict[str, Any] = {}

    def __enter__(self) -> "RayProcesses":
        self._ray = connected()
        names = ", ".join(self._arguments)
        self._bundles = Bundles(self._ray, names, len(self._arguments), self._needs, "PACK")
        for index, (name, arguments) in enumerate(self._arguments.items()):
            self._actors[name] = self._bundles.start(index, arguments, self._environment)
        try:
            self._ray.get([actor.pid.remote() for actor in self._actors.values()], timeout=START)
        except self._ray.exceptions.RayError as error:
            self.__exit__(None, None, None)
            raise WorkerLost(f"Ray did not start {names}", evidence="\n".join(lost(error).last_lines)) from error
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for actor in self._actors.values():
            self._bundles.end(actor)
        self._bundles.close()

    @property
    def names(self) -> Sequence[str]:
        """The names of the processes."""
        return list(self._arguments)

    def deaths(self) -> Mapping[str, ProcessEnd]:
        """The processes that have ended, by name, and those whose actor is lost or does not answer."""
        found = {name: self._status(actor) for name, actor in self._actors.items()}
        return {name: status for name, status in found.items() if isinstance(status, ProcessEnd)}

    def printed(self) -> Mapping[str, Sequence[str]]:
        """The last lines of output of each process, by name, or Ray's cause if its actor is lost."""
        found = {name: self._status(actor) for name, actor in self._actors.items()}
        return {name: status.last_lines if isinstance(status, ProcessEnd) else status for name, status in found.items()}

    def _status(self, actor: Any) -> ProcessEnd | Sequence[str]:
        """The end of an actor's process; its last lines of output while it runs."""
        try:
            code, lines = self._ray.get(actor.status.remote(), timeout=REPLY)
        except self._ray.exceptions.RayError as error:
            return lost(error)
        return lines if code is None else ProcessEnd(code, lines)
