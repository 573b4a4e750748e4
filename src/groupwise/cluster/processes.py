"""The processes that a run has started, whoever holds them, and the error for one that ended."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from types import TracebackType

from groupwise.core import WorkerLost

POLL = 0.02
"""Seconds between two looks at the processes."""
REPORT = 10.0
"""Seconds until a message names the processes that are late."""
GRACE = 2.0
"""Seconds that a process has to end by itself."""
CLOSING = 20.0
"""Seconds in which a process that has closed its connection must end, for its death to be the cause.

A busy machine may need many seconds to end a process that has imported torch.
"""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process: its exit code, negative for a signal, and its last lines of output.

    `launcher_message` is the message of a launcher that lost the process, and so has no exit code.
    """

    exit_code: int
    last_lines: Sequence[str] = ()
    launcher_message: str = ""

    def __str__(self) -> str:
        if self.launcher_message:
            return f"was lost: {self.launcher_message}"
        return (
            f"was killed by {Signals(-self.exit_code).name}"
            if self.exit_code < 0
            else f"ended with exit code {self.exit_code}"
        )


class NamedProcesses(ABC):
    """The abstract set of a run's processes, by name, as a context: at its end all are killed."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of the processes."""

    @abstractmethod
    def deaths(self) -> Mapping[str, ProcessEnd]:
        """The processes that have ended, by name."""

    @abstractmethod
    def printed(self) -> Mapping[str, Sequence[str]]:
        """The last lines of output of each process, by name."""

    def __enter__(self) -> "NamedProcesses":
        return self

    @abstractmethod
    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    @property
    def remedy(self) -> str:
        """The fix of the error for a process that is late."""
        return "look at the load of this machine"

    def wait_for(
        self, late: Callable[[], Sequence[str]], deadline: float, notify: Callable[[str], None] = lambda line: None
    ) -> None:
        """Wait until no process is `late`. `WorkerLost` if one ends before, or is late after `deadline` seconds.

        `notify` gets a line with the names of late processes after `REPORT` seconds.
        """
        start, reported = time.monotonic(), False
        while names := late():
            self.check()
            waited = time.monotonic() - start
            if waited > deadline:
                raise WorkerLost(f"{', '.join(names)}: not ready after {deadline:g} s", fix=self.remedy)
            if waited > REPORT and not reported:
                reported = True
                notify(f"waiting for {', '.join(names)}, up to {deadline:g} s: {self.remedy}")
            time.sleep(POLL)

    def check(self) -> None:
        """`WorkerLost` if a process has ended, which names the process and its end. One that is a cause comes first."""
        if deaths := self.deaths():
            raise death_error(*min(deaths.items(), key=lambda item: not is_cause(item[1])))

    def cause(self, patience: float) -> WorkerLost | None:
        """The error for a process that ends within `patience` seconds, and not because it lost another one.

        A process that was killed, or raised an error, is a cause.
        """
        end = time.monotonic() + patience
        while True:
            deaths = self.deaths()
            if causes := [item for item in deaths.items() if is_cause(item[1])]:
                return death_error(*causes[0])
            if len(deaths) == len(self.names) or time.monotonic() >= end:
                return None
            time.sleep(POLL)


def death_error(name: str, death: ProcessEnd) -> WorkerLost:
    """The error for a process that has ended, with its last lines."""
    return WorkerLost(f"{name} {death}", evidence="\n".join(death.last_lines) or "it printed nothing")


def is_cause(death: ProcessEnd) -> bool:
    """Whether a process ended by itself, and not because another one was lost."""
    return death.exit_code != WorkerLost.code
