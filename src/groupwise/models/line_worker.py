"""A worker process that answers JSON lines, and that a request may kill: its own limits end it, or a deadline."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from select import select
from typing import Any

from groupwise.core import MissingRequirement


class LineWorker:
    """A Python file of this package in another process: started on first use, restarted after it was killed.

    It prints an empty line once its imports are done. Each request is a line of JSON, and so is each reply. `purpose`
    and `packages` are for the error if it cannot start. `deadline` limits a request, in seconds. Thread-safe.
    """

    def __init__(self, program: Path, *, purpose: str, packages: str, deadline: float) -> None:
        self._program, self._purpose, self._packages, self._deadline = program, purpose, packages, deadline
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply to a request; None if the request killed the worker."""
        with self._lock:
            line = self._send(json.dumps(request).encode() + b"\n")
        return json.loads(line) if line else None

    def _send(self, request: bytes) -> bytes:
        """Send a request to the worker and return its reply line; empty if the request killed the worker."""
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:  # a forked process has none
            process = self._start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(request)
            process.stdin.flush()
            replied, _, _ = select([process.stdout], [], [], self._deadline)
            line = process.stdout.readline() if replied else b""
        except BrokenPipeError:
            line = b""
        except BaseException:  # interrupted: a late reply must not answer the next request
            self.close()
            raise
        if not line.endswith(b"\n"):
            self.close()
            return b""
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        """Start a worker and wait until its imports are done. MissingRequirement if it exits first."""
        command = [sys.executable, "-P", str(self._program)]  # -P: the worker's folder is not on its import path
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert process.stdout
        self._process, self._owner = process, os.getpid()
        if process.stdout.readline() != b"\n":
            self.close()
            evidence = f"{self._program.name} ended with exit code {process.returncode}"
            raise MissingRequirement(self._purpose, evidence=evidence, fix=f"pip install {self._packages}")
        return process

    def close(self) -> None:
        """Kill the worker. The next request starts a new one."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()
