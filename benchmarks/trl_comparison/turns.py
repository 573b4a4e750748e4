"""Processes that take turns: each starts and warms up once, then computes only while the others wait.

A process prints a line of JSON after each turn, and starts the next one at an empty line on its standard input. It
finishes when its standard input closes. Standard library only.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

DEADLINE = 900.0
"""Seconds that a turn may take; also a start with warm-up."""


class NoMoreTurns(Exception):
    """The parent closed standard input: there is no further turn."""


def print_json(about: Mapping[str, Any]) -> None:
    """Print one line of JSON."""
    print(json.dumps(about), flush=True)


def wait(about: Mapping[str, Any]) -> None:
    """Print the results of a turn and wait for the next turn. NoMoreTurns if there is none."""
    print_json(about)
    if not sys.stdin.readline():
        raise NoMoreTurns


def last_json(output: str) -> dict[str, Any]:
    """The last line of JSON in the output of a process.

    >>> last_json('{"a": 1}\\nother output')
    {'a': 1}
    """
    return json.loads([line for line in output.splitlines() if line.startswith('{"')][-1])


class TurnProcess:
    """The parent's handle of a process that takes turns. If the process fails, SystemExit with its standard error."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        self.command = command
        self._read = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed in __exit__)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, **how
        )

    def turn(self) -> dict[str, Any]:
        """Run one turn and return its results."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # the process has ended: `receive` reports its errors
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Wait for the next line of JSON and return it."""
        while (line := self._line()) is not None:
            if line.startswith(b'{"'):
                return last_json(line.decode())
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"{' '.join(self.command)} ended with {code}:\n{self._errors.read().decode()[-2000:]}")

    def _line(self) -> bytes | None:
        """The next line of output; None at the end of output or after DEADLINE seconds."""
        assert self._process.stdout
        out = self._process.stdout.fileno()
        while b"\n" not in self._read:
            chunk = os.read(out, 1 << 16) if select.select([out], [], [], DEADLINE)[0] else b""
            if not chunk:
                return None
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return line

    def __enter__(self) -> "TurnProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close standard input and wait for the process to end; after an error, kill it."""
        try:
            if error is not None:
                self._process.kill()
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()
