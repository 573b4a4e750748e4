"""Worker processes that run a user's grade function, each call with a deadline."""

import json
import os
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np

from groupwise.core import WorkerLost
from groupwise.data import Outcome, Verdict
from groupwise.data.verdicts import as_verdict, unverifiable
from groupwise.sandbox.worker_pool import WorkerPool, WorkerProcess

START = 60.0
"""Seconds that a user's file may take to load."""
EXIT = 5.0
"""Seconds that a worker has to exit after SIGTERM."""
REPLY = 1 << 20
"""Bytes of the longest reply."""
MISSES = 8
"""Consecutive calls, over all workers, that miss their deadline before `WorkerLost` is raised."""


def check_workers(deadline: float, workers: int) -> None:
    """Raise ValueError if a verifier's deadline or number of worker processes is too small."""
    if not deadline > 0 or workers < 1:
        raise ValueError(
            f"deadline is {deadline:g} and workers is {workers}\nset deadline above 0, and workers to 1 or more"
        )


class WorkerSpec:
    """The settings of a worker process: its function, the source code (read at creation), and its limits.

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
        self.array_key = token_hex(8)  # no row of a data set can contain it
        source = Path(file).read_text(encoding="utf-8")
        path = str(Path(file).parent) if local_imports else ""
        self.message = {"file": file, "module": Path(file).stem, "function": function, "source": source, "path": path}
        self.message |= {"cpu": cpu, "memory": memory, "array": self.array_key}

    def encode(self, value: Any) -> dict[str, Any]:
        """An array as a JSON object, which `worker.py` decodes. TypeError for any other value."""
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a {type(value).__name__} cannot be sent to a worker")
        data = b64encode(np.ascontiguousarray(value, "<f4").tobytes()).decode()
        return {self.array_key: data, "shape": value.shape}

    @property
    def environment(self) -> dict[str, str] | None:
        """The worker's environment variables. None: the caller's; if `bare`: what Python needs."""
        return {k: v for k, v in os.environ.items() if k in _NEEDED} if self.bare else None


_NEEDED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")


class FunctionPool:
    """A fixed number of worker processes that run one function; each starts at its first use.

    After `misses` missed deadlines in a row, by all workers together, calls raise `WorkerLost`; 0 means never. A call
    that uses up the spec's `cpu` seconds raises `CpuTimeExceeded`. `deadline` is in seconds of wall time.
    """

    def __init__(self, spec: WorkerSpec, deadline: float, workers: int, misses: int = MISSES) -> None:
        self.spec, self.deadline, self.misses = spec, deadline, misses
        self._pool = WorkerPool([FunctionWorker(spec) for _ in range(workers)], "judge")
        self._missed, self._lock = 0, Lock()
        self._lost: WorkerLost | None = None

    def submit(self, *arguments: Any, **named: Any) -> "Future[Verdict]":
        """Calls the function with these arguments, as JSON, in a worker; the future gives its verdict."""
        return self._pool.submit(lambda worker: _to_verdict(self._reply(worker, [arguments, named])))

    def submit_many(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int) -> "Future[list[Verdict]]":
        """Calls a function that returns a list of `count` grades; the future gives their verdicts."""
        line = [arguments, named, count]
        return self._pool.submit(lambda worker: [_to_verdict(one) for one in _grades(self._reply(worker, line), count)])

    def trial(self, arguments: Sequence[Any], named: Mapping[str, Any], count: int | None = None) -> list[Verdict]:
        """Wait for the verdicts of one call.

        `MissingGradeError` if it gives none; an unverifiable `Verdict` counts as one.
        """
        reply = self._pool.submit(self._reply, [arguments, named, *([] if count is None else [count])]).result()
        replies = _grades(reply, count or 1)
        if not reply.get("loaded", True):
            raise FunctionNotLoaded(reply["error"])
        for one in replies:
            if error := one.get("error", "") or ("" if "verdict" in one else as_verdict(one["value"]).cause):
                raise MissingGradeError(error)
        return [_to_verdict(one) for one in replies]

    def close(self) -> None:
        """Ends the worker processes. If the host process dies, they end by themselves."""
        self._pool.close()

    def _reply(self, worker: "FunctionWorker", arguments: Sequence[Any]) -> dict[str, Any]:
        """The worker's reply to one call, with an `error` if it gives no grade."""
        if self._lost is not None:
            raise self._lost
        try:
            worker.start()
            reply = worker.request(arguments, self.deadline)
            self._missed = 0
            return reply
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
            return {"error": f"no verdict within {time}"}
        except WorkerLost as lost:
            self._lost = lost
            raise
        except (OSError, EOFError, ValueError, TypeError) as error:
            return {"error": f"the verifier's process gave no verdict: {error}"}


class MissingGradeError(Exception):
    """A call of a grade function returned no grade; the message is the cause."""


class FunctionNotLoaded(MissingGradeError):
    """The worker could not load the function's file."""


class CpuTimeExceeded(Exception):
    """A call has used up its CPU time."""


class FunctionWorker(WorkerProcess):
    """One process that runs user code, restarted after it died. `worker.py` kills all that the code starts."""

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
            raise WorkerLost(what, evidence=str(error), fix="run the function's file with Python to see why") from error

    def request(self, message: Any, seconds: float) -> dict[str, Any]:
        """Sends one JSON line and returns the reply. Any exception, such as TimeoutError, ends the process."""
        assert self.socket is not None, "start() comes before request()"
        line = json.dumps(message, default=self.spec.encode).encode() + b"\n"
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
        """Sends SIGTERM to the supervisor in `worker.py`, which ends all its processes. Safe from any thread."""
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


def _grades(reply: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The reply for each of `count` answers; an error is the reply for all."""
    return reply.get("grades", [reply] * count)


def _to_verdict(reply: dict[str, Any]) -> Verdict:
    if "error" in reply:
        return unverifiable(reply["error"])
    if "verdict" not in reply:
        return as_verdict(reply["value"])
    fields = reply["verdict"]
    try:
        score = None if fields["score"] is None else _number(fields["score"])
        parts = {name: _number(value) for name, value in fields["subscores"].items()}
        texts = {name: str(fields[name]) for name in ("feedback", "cause")}
        answer = fields["answer"] if isinstance(fields["answer"], str) else None
        steps = {
            name: tuple((int(_number(end)), _number(x)) for end, x in pairs) for name, pairs in fields["steps"].items()
        }
        return as_verdict(Verdict(Outcome(fields["outcome"]), score, parts, **texts, answer=answer, step_scores=steps))
    except (ArithmeticError, TypeError, ValueError) as error:
        return unverifiable(f"it returned an invalid Verdict: {error}")


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"the grade {value!r} is not a number")
