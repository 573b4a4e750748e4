"""Processes on this host that live as long as the run that started them."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from signal import Signals
from types import TracebackType
from typing import IO

from groupwise.data import WorkerLost
from groupwise.sandbox.processes import last_lines

POLL = 0.02
"""Seconds between two looks at the processes."""
GRACE = 2.0
"""Seconds in which a process whose connection closed must end, for its death to be the cause."""


class LocalProcesses:
    """A context with Python processes, by name. Their output goes to unnamed files, whose last lines an error shows.

    They get no signals of the terminal: Ctrl-C reaches the run alone, which ends them. At its end all are killed.
    """

    def __init__(self, arguments: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> None:
        self._arguments, self._environment = arguments, dict(environment)
        self._started: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}

    def __enter__(self) -> "LocalProcesses":
        for name, arguments in self._arguments.items():
            log = tempfile.TemporaryFile()
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip
            self._started[name] = process, log
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process, log in self._started.values():
            process.kill()
            process.wait()
            log.close()

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids, by name."""
        return {name: process.pid for name, (process, _) in self._started.items()}

    def wait_until(self, ready: Callable[[], bool], deadline: float) -> None:
        """Wait until `ready`. `WorkerLost` if a process ends before, or after `deadline` seconds."""
        end = time.monotonic() + deadline
        while not ready():
            self.check()
            if time.monotonic() > end:
                names = ", ".join(self._started)
                raise WorkerLost(f"{names}: not ready after {deadline:g} s", fix="look at the load of this machine")
            time.sleep(POLL)

    def check(self, patience: float = 0.0) -> None:
        """`WorkerLost` if a process has ended, or ends within `patience` seconds. It names the process and its end.

        A process that was killed, or raised an error, comes before one that only lost its connection to that one.
        """
        end = time.monotonic() + patience
        while not (ended := self._ended()) and time.monotonic() < end:
            time.sleep(POLL)
        if not ended:
            return
        name = min(ended, key=lambda name: ended[name] == WorkerLost.code)
        code = ended[name]
        how = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = last_lines(self._started[name][1])
        raise WorkerLost(f"{name} {how}", evidence="\n".join(lines) or "it printed nothing")

    def _ended(self) -> dict[str, int]:
        codes = {name: process.poll() for name, (process, _) in self._started.items()}
        return {name: code for name, code in codes.items() if code is not None}
