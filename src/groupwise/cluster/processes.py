"""The processes that a run has started, whoever holds them, and the error for one that ended."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from types import TracebackType

from groupwise.data import WorkerLost

POLL = 0.02
"""Seconds between two looks at the processes."""
GRACE = 2.0
"""Seconds in which a process whose connection closed must end, for its death to be the cause."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process: its exit code, negative for a signal, and its last lines of output.

    `cause` is the message of a launcher that lost the process, and so has no exit code.
    """

    code: int
    lines: Sequence[str] = ()
    cause: str = ""

    def __str__(self) -> str:
        if self.cause:
            return f"was lost: {self.cause}"
        return f"was killed by {Signals(-self.code).name}" if self.code < 0 else f"ended with exit code {self.code}"


class Processes(ABC):
    """A context with processes by name. At its end all are killed."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of the processes."""

    @abstractmethod
    def deaths(self) -> Mapping[str, Death]:
        """The processes that have ended, by name."""

    def __enter__(self) -> "Processes":
        return self

    @abstractmethod
    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def wait_until(self, ready: Callable[[], bool], deadline: float) -> None:
        """Wait until `ready`. `WorkerLost` if a process ends before, or after `deadline` seconds."""
        end = time.monotonic() + deadline
        while not ready():
            self.check()
            if time.monotonic() > end:
                names = ", ".join(self.names)
                raise WorkerLost(f"{names}: not ready after {deadline:g} s", fix="look at the load of this machine")
            time.sleep(POLL)

    def check(self, patience: float = 0.0) -> None:
        """`WorkerLost` if a process has ended, or ends within `patience` seconds. It names the process and its end.

        A process that was killed, or raised an error, comes before one that only lost its connection to that one.
        """
        end = time.monotonic() + patience
        while not (deaths := self.deaths()) and time.monotonic() < end:
            time.sleep(POLL)
        if not deaths:
            return
        name = min(deaths, key=lambda name: deaths[name].code == WorkerLost.code)
        death = deaths[name]
        raise WorkerLost(f"{name} {death}", evidence="\n".join(death.lines) or "it printed nothing")
