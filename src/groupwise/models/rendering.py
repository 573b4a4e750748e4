"""Chat templates of a model directory, rendered in a process of their own with bounded time and memory."""

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from groupwise.data import BadData, MissingRequirement

WORKER = Path(__file__).with_name("template_worker.py")


class Renderer:
    """One worker process, started at the first rendering and again after one that was killed. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, source: str, fields: dict[str, Any]) -> str:
        """The text that a Jinja template writes. BadData where it fails, or needs too much time, memory or text."""
        request = json.dumps({"source": source, "fields": fields}).encode() + b"\n"
        with self._lock:
            answer = self._ask(request)
        if not answer:
            raise _failed("it was ended: it needs more than a second of processor time, or too much memory")
        reply = json.loads(answer)
        if "error" in reply:
            raise _failed(reply["error"])
        return reply["text"]

    def _ask(self, request: bytes) -> bytes:
        """The worker's line; empty where the request has ended it."""
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:  # a fork has no worker
            process = self._started()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(request)
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        except BaseException:  # interrupted: what the worker still writes belongs to no other request
            self.close()
            raise
        if not answer.endswith(b"\n"):
            self.close()
            return b""
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        """A new worker that has loaded what it needs."""
        words = [sys.executable, "-P", str(WORKER)]  # -P: files beside the worker are no modules of it
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        assert process.stdout
        self._process, self._owner = process, os.getpid()
        if process.stdout.readline() != b"\n":
            self.close()
            seen = f"{WORKER.name} ended with exit code {process.returncode}"
            raise MissingRequirement("chat templates cannot be rendered", evidence=seen, fix="pip install jinja2")
        return process

    def close(self) -> None:
        """End the worker. The next rendering starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.communicate()


def _failed(why: str) -> BadData:
    fix = "look at the roles of the messages, or say --template no"
    return BadData(f"the chat template cannot write this prompt: {why}", fix=fix)


_RENDERER = Renderer()
atexit.register(_RENDERER.close)
render = _RENDERER.render
