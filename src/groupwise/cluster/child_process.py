"""One process with its output, held by the process that starts it: the run itself, or a worker of a cluster."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from groupwise.sandbox.die_with_parent import bound_command
from groupwise.sandbox.worker_pool import last_lines


class ChildProcess:
    """A Python process. Its output goes to the file `log`, or else to an unnamed one; an error shows its last lines.

    It gets no signals of the terminal. If it is `bound`, the kernel kills it when this process dies. `environment` is
    added to this process's. A worker of a cluster imports this class, so its module imports no torch.
    """

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, bound: bool = False,
        log: IO[bytes] | None = None,
    ) -> None:  # fmt: skip
        self.log = log or tempfile.TemporaryFile("a+b")  # noqa: SIM115
        self._begin = self.log.seek(0, os.SEEK_END)
        command = bound_command(sys.executable, os.getpid(), arguments) if bound else [sys.executable, *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip

    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def status(self) -> tuple[int | None, list[str]]:
        """Its exit code, None while it runs, and its last lines of output."""
        return self.process.poll(), self.printed()

    def printed(self) -> list[str]:
        """Its last lines of output."""
        return last_lines(self.log, self._begin)

    def end(self, patience: float = 0.0) -> tuple[int | None, list[str]]:
        """Terminate it, kill it after `patience` seconds, and return its status: the code is None if this ended it."""
        ours: tuple[int, ...] = ()
        if self.process.poll() is None:
            self.process.terminate()
            ours = (0, -signal.SIGTERM)
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code, ours = self.process.wait(), (*ours, -signal.SIGKILL)
        return None if code in ours else code, self.printed()
