"""Verifiers from a user's grade function, which runs in worker processes with a deadline."""

import asyncio
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from groupwise.data import Outcome, Prompt, Sample, Usage, Verdict, Verifier, WorkerLost
from groupwise.data.verdicts import as_verdict, unverifiable
from groupwise.sandbox.processes import WorkerPool, WorkerProcess

__all__ = ["grade_function"]

START = 60.0
"""Seconds that a user's file may take to load."""
EXIT = 5.0
"""Seconds that a worker has to exit after SIGTERM."""
REPLY = 1 << 20
"""Bytes of the longest reply."""
MISSES = 8
"""Deadlines missed in a row, by all workers together, after which `WorkerLost` is raised."""


def grade_function(function: Callable[..., Any], *, deadline: float = 10.0, workers: int = 2) -> Verifier:
    """A verifier from `function(prompt: str, answer: str, gold)`, which returns a bool, a number or a Verdict.

    A parameter called `row` gets the columns of the prompt's data row, as a dict. A number is a score: the answer is
    neither correct nor wrong, unless the recipe has a `threshold`. An exception, a number that is not finite, any other
    value, and a call that takes more than `deadline` seconds are unverifiable, with a cause. A plain function runs in
    worker processes, which are killed at the deadline and replaced, so define it at the top level of a file. An `async`
    function runs in the event loop and must not block (docs/runs.md). `WorkerLost` if a file does not load in a minute,
    or if eight deadlines in a row are missed.
    """
    if inspect.iscoroutinefunction(function):
        return AsyncFunctionVerifier(function, deadline)
    name = getattr(function, "__qualname__", "<no name>")
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if "<" in name or file is None or not Path(file).is_file():
        fix = "define it with def at the top level of a file, as def grade(prompt, answer, gold)"
        raise Usage(f"{name} cannot run in a separate process", evidence=repr(function)[:200], fix=fix)
    spec = WorkerSpec(os.path.abspath(file), name, local_imports=True)
    return FunctionVerifier(FunctionPool(spec, deadline, workers), takes_row(function))


def takes_row(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter called `row`.

    >>> takes_row(lambda prompt, answer, gold, row: row["level"] > 1), takes_row(lambda prompt, answer, gold: True)
    (True, False)
    """
    try:
        return "row" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


class AsyncFunctionVerifier:
    """A verifier from an `async` grade function, with a deadline in seconds."""

    keeps_time = True

    def __init__(self, function: Callable[..., Any], deadline: float) -> None:
        self.function, self.deadline, self.takes_row = function, deadline, takes_row(function)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        named = {"row": dict(prompt.row)} if self.takes_row else {}
        call = self.function(prompt.text, sample.text, prompt.row.get("answer"), **named)
        try:
            async with asyncio.timeout(self.deadline):  # in the same task, so the watchdog can end a call that blocks
                return as_verdict(await call)
        except TimeoutError:
            return unverifiable(f"no verdict within {self.deadline:g} s")
        except Exception as error:
            return unverifiable(f"{type(error).__name__}: {error}")


class FunctionVerifier:
    """A verifier from a grade function in a pool of worker processes. Usable from any thread and any event loop."""

    keeps_time = True

    def __init__(self, pool: "FunctionPool", takes_row: bool = False) -> None:
        self.pool, self.close, self.takes_row = pool, pool.close, takes_row

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        named = {"row": dict(prompt.row)} if self.takes_row else {}
        future = self.pool.submit(prompt.text, sample.text, prompt.row.get("answer"), **named)
        return await asyncio.wrap_future(future)


class WorkerSpec:
    """A worker's function, its source (read once, now), and its limits.

    `local_imports` lets the file import modules from its directory. `cpu` limits a call in seconds of the process's
    CPU time, so a busy machine changes nothing; `memory` limits the process in bytes. `bare` starts it without the
    caller's environment variables.
    """

    def __init__(
        self,
        file: str,
        function: str,
        *,
        local_imports: bool = False,
        cpu: float = 0.0,
        memory: int = 0,
        bare: bool = False,
    ) -> None:
        self.name, self.cpu, self.bare = f"{file}:{function}", cpu, bare
        source = Path(file).read_text(encoding="utf-8")
        path = str(Path(file).parent) if local_imports else ""
        self.message = {"file": file, "module": Path(file).stem, "function": function, "source": source, "path": path}
        self.message |= {"cpu": cpu, "memory": memory}

    @property
    def environment(self) -> dict[str, str] | None:
        """The worker's environment variables. None: those of the caller; if `bare`: those that Python needs."""
        return {k: v for k, v in os.environ.items() if k in _NEEDED} if self.bare else None


_NEEDED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")


class FunctionPool:
    """A fixed number of worker processes that run one function; each starts at its first use.

    After `misses` missed deadlines in a row, by all workers together, calls raise `WorkerLost`; 0 means never. A call
    that uses up the spec's `cpu` seconds raises `CpuTimeExceeded`. `deadline` is in seconds of wall time.
    """

    def __init__(self, spec: WorkerSpec, deadline: float, workers: int, misses: int = MISSES) -> None:
        self.spec, self.deadline, self.misses = spec, deadline, misses
        self._pool = WorkerPool([Worker(spec) for _ in range(workers)], "judge")
        self._missed, self._lock = 0, Lock()
        self._lost: WorkerLost | None = None

    def submit(self, *arguments: Any, **named: Any) -> "Future[Verdict]":
        """Calls the function with these arguments, as JSON, in a worker; the future gives its verdict."""
        return self._pool.submit(self._call, [arguments, named])

    def close(self) -> None:
        """Ends the worker processes. If the host process dies, they end by themselves."""
        self._pool.close()

    def _call(self, worker: "Worker", arguments: list[Any]) -> Verdict:
        if self._lost is not None:
            raise self._lost
        try:
            worker.start()
            reply = worker.request(arguments, self.deadline)
            self._missed = 0
            return _to_verdict(reply)
        except CpuTimeExceeded:
            raise CpuTimeExceeded(f"no verdict within {self.spec.cpu:g} s of CPU time") from None
        except TimeoutError:
            time = f"{self.deadline:g} s"
            with self._lock:
                self._missed += 1
            if self.misses and self._missed >= self.misses:
                what = f"the verifier gave no verdict within {time}, {self.misses} times in a row"
                fix = "make it faster, or limit the work that it does"
                self._lost = WorkerLost(what, evidence=self.spec.name, fix=fix)
                raise self._lost from None
            return unverifiable(f"no verdict within {time}")
        except WorkerLost as lost:
            self._lost = lost
            raise
        except (OSError, EOFError, ValueError, TypeError) as error:
            return unverifiable(f"the verifier's process gave no verdict: {error}")


class CpuTimeExceeded(Exception):
    """A call has used up its CPU time."""


class Worker(WorkerProcess):
    """One worker process, restarted after it died. Its parent in `worker.py` kills all processes of the user's code."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self.spec = spec

    def start(self) -> None:
        """Starts the process if it does not run, and loads the file. `WorkerLost` if that fails."""
        if self.process is not None:
            return
        try:
            self.socket, other_end = socket.socketpair()
            with other_end:
                program = Path(__file__).with_name("worker.py")
                # -P: modules in the program's directory must not shadow the user's imports.
                command = [sys.executable, "-P", str(program)]
                stdin, env = other_end.fileno(), self.spec.environment
                self.process = subprocess.Popen(command, stdin=stdin, env=env, start_new_session=True)
            self.request(self.spec.message, START)
        except (OSError, EOFError, ValueError) as error:
            self.end()
            what = f"the verifier {self.spec.name} did not start"
            raise WorkerLost(what, evidence=str(error), fix="run the file by itself to see why") from error

    def request(self, message: Any, seconds: float) -> dict[str, Any]:
        """Sends one JSON line and returns the reply. TimeoutError, OSError, EOFError and ValueError end the process."""
        assert self.socket is not None, "start() comes before request()"
        line = json.dumps(message).encode() + b"\n"
        until = monotonic() + seconds
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(line)
            reply = bytearray()
            while not reply.endswith(b"\n"):
                self.socket.settimeout(max(until - monotonic(), 1e-3))
                chunk = self.socket.recv(1 << 16)
                if not chunk:
                    raise self.exit_error()
                reply += chunk
                if len(reply) > REPLY:
                    raise ValueError(f"a reply of more than {REPLY} bytes")
            return json.loads(reply)
        except BaseException:
            self.end()
            raise

    def kill(self) -> None:
        """Sends SIGTERM to the parent in `worker.py`, which ends all its processes. Safe from any thread."""
        process = self.process
        if process is not None:
            process.terminate()

    def end(self) -> str:
        """Ends all processes of the worker. If that takes too long, kills its process group."""
        self.kill()
        if self.socket is not None:
            until = monotonic() + EXIT
            with suppress(OSError):  # the socket stays open until the parent in `worker.py` has ended
                while (left := until - monotonic()) > 0:
                    self.socket.settimeout(left)
                    if not self.socket.recv(1 << 16):
                        break
        super().kill()
        return super().end()

    def exit_error(self) -> Exception:
        """The error for a worker that has ended: it used up its CPU time, or it died."""
        status = self.end()
        return CpuTimeExceeded(status) if status == f"exit code {-signal.SIGPROF}" else EOFError(status)


def _to_verdict(reply: dict[str, Any]) -> Verdict:
    if "error" in reply:
        return unverifiable(reply["error"])
    if "verdict" not in reply:
        return as_verdict(reply["value"])
    fields = reply["verdict"]
    try:
        score = None if fields["score"] is None else _number(fields["score"])
        parts = {name: _number(value) for name, value in fields["parts"].items()}
        texts = {name: str(fields[name]) for name in ("feedback", "cause")}
        answer = fields["answer"] if isinstance(fields["answer"], str) else None
        steps = {
            name: tuple((int(_number(end)), _number(x)) for end, x in pairs) for name, pairs in fields["steps"].items()
        }
        return as_verdict(Verdict(Outcome(fields["outcome"]), score, parts, **texts, answer=answer, steps=steps))
    except (ArithmeticError, TypeError, ValueError) as error:
        return unverifiable(f"it returned an invalid Verdict: {error}")


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"{value!r} is no number")
