"""Processes on this host that live as long as the run that started them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from groupwise.cluster.child_process import ChildProcess
from groupwise.cluster.processes import NamedProcesses, ProcessEnd
from groupwise.runs.process_logs import open_log
from groupwise.runs.run_layout import log_file


class LocalProcesses(NamedProcesses):
    """A context with Python processes, by name. `environment` is added to this process's, and `own` to that of one.

    Their output goes to files in the folder `logs`, or else to unnamed ones. `Storage` if these cannot be opened.
    Each process has its own process group, so Ctrl-C reaches only the run, which ends them. They are killed when the
    context ends; on Linux the kernel also kills them, even stopped ones, when the run itself is killed.
    """

    def __init__(
        self, arguments: Mapping[str, Sequence[str]], environment: Mapping[str, str], logs: Path | None = None, *,
        own: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._arguments, self._logs = arguments, logs
        self._environments = {name: {**environment, **own.get(name, {})} for name in arguments}
        self._started: dict[str, ChildProcess] = {}

    def __enter__(self) -> "LocalProcesses":
        for name, arguments in self._arguments.items():
            log = open_log(log_file(self._logs, name)) if self._logs else None
            self._started[name] = ChildProcess(arguments, self._environments[name], bound=True, log=log)
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

    def deaths(self) -> Mapping[str, ProcessEnd]:
        """The processes that have ended, by name."""
        found = {name: child.status() for name, child in self._started.items()}
        return {name: ProcessEnd(code, lines) for name, (code, lines) in found.items() if code is not None}

    def printed(self) -> Mapping[str, Sequence[str]]:
        """The last lines of output of each process, by name."""
        return {name: child.printed() for name, child in self._started.items()}
