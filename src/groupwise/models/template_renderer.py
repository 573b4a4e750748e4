"""Render a model directory's chat template in a worker process with bounded time and memory."""

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from groupwise.core import BadData, MissingRequirement

WORKER = Path(__file__).with_name("template_worker.py")


class TemplateRenderer:
    """The worker process that renders templates: started on first use, restarted after it was killed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, source: str, fields: dict[str, Any]) -> str:
        """The text of a Jinja template. BadData if it fails or exceeds the limits of time, memory or length."""
        request = json.dumps({"source": source, "fields": fields}).encode() + b"\n"
        with self._lock:
            line = self._send(request)
        if not line:
            raise _failed("it was killed: it needs more than a second of CPU time, or too much memory")
        reply = json.loads(line)
        if "error" in reply:
            raise _failed(reply["error"])
        return reply["text"]

    def _send(self, request: bytes) -> bytes:
        """Send a request to the worker and return its reply line; empty if the request killed the worker."""
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:  # a forked process has none
            process = self._start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
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
        command = [sys.executable, "-P", str(WORKER)]  # -P: the worker's folder is not on its import path
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert process.stdout
        self._process, self._owner = process, os.getpid()
        if process.stdout.readline() != b"\n":
            self.close()
            evidence = f"{WORKER.name} ended with exit code {process.returncode}"
            raise MissingRequirement("chat templates cannot be rendered", evidence=evidence, fix="pip install jinja2")
        return process

    def close(self) -> None:
        """Kill the worker. The next rendering starts a new one."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()


def _failed(why: str) -> BadData:
    fix = "check the roles of the messages, or use --template no"
    return BadData(f"the chat template fails on this prompt: {why}", fix=fix)


_RENDERER = TemplateRenderer()
atexit.register(_RENDERER.close)
render = _RENDERER.render
