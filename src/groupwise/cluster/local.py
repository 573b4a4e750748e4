"""Processes on this host that live as long as the run that started them."""

from collections.abc import Mapping, Sequence
from types import TracebackType

from groupwise.cluster.held_process import HeldProcess
from groupwise.cluster.processes import Death, Processes
from groupwise.sandbox.processes import last_lines


class LocalProcesses(Processes):
    """A context with Python processes, by name. `environment` is added to that of this process.

    They get no signals of the terminal: Ctrl-C reaches the run alone, which ends them. At its end all are killed; if it
    is killed itself, the kernel (Linux) kills them, even stopped ones.
    """

    def __init__(self, arguments: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> None:
        self._arguments, self._environment = arguments, dict(environment)
        self._started: dict[str, HeldProcess] = {}

    def __enter__(self) -> "LocalProcesses":
        for name, arguments in self._arguments.items():
            self._started[name] = HeldProcess(arguments, self._environment, bound=True)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in self._started.values():
            child.end()
            child.log.close()

    @property
    def names(self) -> Sequence[str]:
        """The names of the processes."""
        return list(self._arguments)

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids, by name."""
        return {name: child.pid() for name, child in self._started.items()}

    def deaths(self) -> Mapping[str, Death]:
        """The processes that have ended, by name."""
        ended = {name: child for name, child in self._started.items() if child.process.poll() is not None}
        return {name: Death(child.process.returncode, last_lines(child.log)) for name, child in ended.items()}
