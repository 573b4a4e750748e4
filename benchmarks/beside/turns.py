"""Processes that take turns: each starts and warms up once, then computes only while the others wait. Standard library
only.

A process says a line of JSON after every turn, and takes the next one at an empty line on its standard input. Where
that has ended, so has the process's work.
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
"""Seconds that a turn may take, a start and warm-up as well."""


class Over(Exception):
    """Nobody asks for another turn."""


def said(about: Mapping[str, Any]) -> None:
    """Say how the turn went."""
    print(json.dumps(about), flush=True)


def wait(about: Mapping[str, Any]) -> None:
    """Say how the turn went, and wait for the next one. `Over` where there is none."""
    said(about)
    if not sys.stdin.readline():
        raise Over


def told(output: str) -> dict[str, Any]:
    """What a process said of itself: its last line of JSON.

    >>> told('{"a": 1}\\nTRL says more')
    {'a': 1}
    """
    return json.loads([line for line in output.splitlines() if line.startswith('{"')][-1])


class Player:
    """A process that takes turns, seen from outside. SystemExit with its errors where it fails."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        self.command = command
        self._read = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the player leaves)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, **how
        )

    def turn(self) -> dict[str, Any]:
        """One turn, and what it says of it."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # of one that has ended: its errors are told of below
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next thing that it says of itself."""
        while (line := self._line()) is not None:
            if line.startswith(b'{"'):
                return told(line.decode())
        self._process.kill()
        code = self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"{' '.join(self.command)} ended with {code}:\n{self._errors.read().decode()[-2000:]}")

    def _line(self) -> bytes | None:
        """The next line of its output; None where there comes no more, or not in time."""
        assert self._process.stdout
        out = self._process.stdout.fileno()
        while b"\n" not in self._read:
            more = os.read(out, 1 << 16) if select.select([out], [], [], DEADLINE)[0] else b""
            if not more:
                return None
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """It hears that there is no other turn, and ends by itself; where something went wrong it is ended."""
        try:
            if error is not None:
                self._process.kill()
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()
