"""Grade functions in worker processes that can be killed, and a verifier from a user's plain function."""

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
LEAVE = 5.0
"""Seconds in which a process has to end when asked."""
REPLY = 1 << 20
"""Bytes of the longest reply."""
IN_A_ROW = 8
"""Deadlines missed in a row, by all workers together, after which a grader is given up."""


def grade_function(function: Callable[..., Any], *, deadline: float = 10.0, workers: int = 2) -> Verifier:
    """A verifier from `function(prompt: str, answer: str, gold)`: True, False, a score in [0, 1] or a Verdict.

    A score counts as right at 1. An exception, NaN, a score out of range, any other value, and a call that takes more
    than `deadline` seconds are unverifiable, with their cause. A plain function runs in worker processes that are
    killed at the deadline and replaced, so it must stand at the top of a file; an `async` one runs in the event loop
    and must not block (docs/runs.md says what happens then). `WorkerLost` when a file does not load in a minute, or
    eight deadlines in a row are missed.
    """
    if inspect.iscoroutinefunction(function):
        return AsyncFunctionVerifier(function, deadline)
    name = getattr(function, "__qualname__", "<no name>")
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if "<" in name or file is None or not Path(file).is_file():
        fix = "define it with def at the top level of a file, as def grade(prompt, answer, gold)"
        raise Usage(f"{name} cannot run in a process of its own", evidence=repr(function)[:200], fix=fix)
    order = WorkerSpec(os.path.abspath(file), name, beside=True)
    return FunctionVerifier(FunctionPool(order, deadline, workers))


class AsyncFunctionVerifier:
    """An `async` grade function under a deadline."""

    keeps_time = True

    def __init__(self, function: Callable[..., Any], deadline: float) -> None:
        self.function, self.deadline = function, deadline

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        call = self.function(prompt.text, sample.text, prompt.given.get("answer"))
        try:
            async with asyncio.timeout(self.deadline):  # in the same task, so that a call which blocks can be ended
                return as_verdict(await call)
        except TimeoutError:
            return unverifiable(f"no verdict within {self.deadline:g} s")
        except Exception as error:
            return unverifiable(f"{type(error).__name__}: {error}")


class FunctionVerifier:
    """A grade function in a constant number of worker processes; each starts when first needed.

    It works from any thread and any event loop: the waiting is done by threads of its own.
    """

    keeps_time = True

    def __init__(self, pool: "FunctionPool") -> None:
        self.pool, self.close = pool, pool.close

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return await asyncio.wrap_future(self.pool.ask(prompt.text, sample.text, prompt.given.get("answer")))


class WorkerSpec:
    """What a worker runs: a function of a file, as the file is now. `beside` lets it import what lies beside it.

    With `cpu` a call may use so many seconds of its process's own time, whatever else the machine does; `memory` bounds
    the process in bytes. `bare` starts it without the caller's environment.
    """

    def __init__(
        self, file: str, function: str, *, beside: bool = False, cpu: float = 0.0, memory: int = 0, bare: bool = False
    ) -> None:
        self.name, self.cpu, self.bare = f"{file}:{function}", cpu, bare
        source = Path(file).read_text(encoding="utf-8")
        path = str(Path(file).parent) if beside else ""
        self.line = {"file": file, "module": Path(file).stem, "function": function, "source": source, "path": path}
        self.line |= {"cpu": cpu, "memory": memory}

    @property
    def environment(self) -> dict[str, str] | None:
        """None for the caller's own; else only what Python needs to find its packages."""
        return {k: v for k, v in os.environ.items() if k in _NEEDED} if self.bare else None


_NEEDED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")


class FunctionPool:
    """A constant number of worker processes that run one function; each starts when first needed.

    `in_a_row` deadlines missed one after the other, by all workers together, end it with `WorkerLost`; 0 is never. A
    call that uses up its order's `cpu` seconds raises `OwnTime`.
    """

    def __init__(self, order: WorkerSpec, deadline: float, workers: int, in_a_row: int = IN_A_ROW) -> None:
        self.order, self.deadline, self.in_a_row = order, deadline, in_a_row
        self._crew = WorkerPool([Worker(order) for _ in range(workers)], "judge")
        self._missed, self._counting = 0, Lock()
        self._lost: WorkerLost | None = None

    def ask(self, *asked: Any) -> "Future[Verdict]":
        """What the function says of these arguments, in time."""
        return self._crew.submit(self._judge, asked)

    def close(self) -> None:
        """Ends the worker processes. One whose caller is gone ends by itself."""
        self._crew.close()

    def _judge(self, worker: "Worker", asked: tuple[Any, ...]) -> Verdict:
        if self._lost is not None:
            raise self._lost
        try:
            worker.start()
            reply = worker.ask(asked, self.deadline)
            self._missed = 0
            return _read(reply)
        except OwnTime:
            raise OwnTime(f"no verdict within {self.order.cpu:g} s of its own time") from None
        except TimeoutError:
            time = f"{self.deadline:g} s"
            with self._counting:
                self._missed += 1
            if self.in_a_row and self._missed >= self.in_a_row:
                what = f"the verifier gave no verdict within {time}, {self.in_a_row} times in a row"
                self._lost = WorkerLost(what, evidence=self.order.name, fix="make it faster, or bound what it does")
                raise self._lost from None
            return unverifiable(f"no verdict within {time}")
        except WorkerLost as lost:
            self._lost = lost
            raise
        except (OSError, EOFError, ValueError, TypeError) as error:
            return unverifiable(f"the verifier's process gave no verdict: {error}")


class OwnTime(Exception):
    """A process has used up the time of its own that a call may take."""


class Worker(WorkerProcess):
    """One process, replaced when it dies. Its attendant (`grader.py`) kills all that a user's code started."""

    def __init__(self, order: WorkerSpec) -> None:
        super().__init__()
        self.order = order

    def start(self) -> None:
        if self.process is not None:
            return
        try:
            self.socket, theirs = socket.socketpair()
            with theirs:
                grader = Path(__file__).with_name("worker.py")
                # -P: the grader's own directory must not shadow the user's imports.
                command = [sys.executable, "-P", str(grader)]
                stdin, env = theirs.fileno(), self.order.environment
                self.process = subprocess.Popen(command, stdin=stdin, env=env, start_new_session=True)
            self.ask(self.order.line, START)
        except (OSError, EOFError, ValueError) as error:
            self.end()
            what = f"the verifier {self.order.name} did not start"
            raise WorkerLost(what, evidence=str(error), fix="run the file by itself to see why") from error

    def ask(self, asked: Any, seconds: float) -> dict[str, Any]:
        """One line there, one line back. TimeoutError, OSError, EOFError or ValueError end the process."""
        assert self.socket is not None, "a worker is started before it is asked"
        line = json.dumps(asked).encode() + b"\n"
        until = monotonic() + seconds
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(line)
            reply = bytearray()
            while not reply.endswith(b"\n"):
                self.socket.settimeout(max(until - monotonic(), 1e-3))
                got = self.socket.recv(1 << 16)
                if not got:
                    raise self.gone()
                reply += got
                if len(reply) > REPLY:
                    raise ValueError(f"a reply of more than {REPLY} bytes")
            return json.loads(reply)
        except BaseException:
            self.end()
            raise

    def kill(self) -> None:
        """Asks the attendant to end, with all that it watches over; safe from any thread."""
        process = self.process
        if process is not None:
            process.terminate()

    def end(self) -> str:
        """Ends all of it; an attendant that does not end in time is killed with its process group."""
        self.kill()
        if self.socket is not None:
            until = monotonic() + LEAVE
            with suppress(OSError):  # the attendant holds the socket until it has ended
                while (left := until - monotonic()) > 0:
                    self.socket.settimeout(left)
                    if not self.socket.recv(1 << 16):
                        break
        super().kill()
        return super().end()

    def gone(self) -> Exception:
        """Why it answers no more: it has used up its time, or something ended it."""
        how = self.end()
        return OwnTime(how) if how == f"exit code {-signal.SIGPROF}" else EOFError(how)


def _read(reply: dict[str, Any]) -> Verdict:
    if "error" in reply:
        return unverifiable(reply["error"])
    if "verdict" not in reply:
        return as_verdict(reply["value"])
    said = reply["verdict"]
    try:
        score = None if said["score"] is None else _number(said["score"])
        parts = {name: _number(value) for name, value in said["parts"].items()}
        told = {name: str(said[name]) for name in ("feedback", "cause")}
        read = said["answer"] if isinstance(said["answer"], str) else None
        return as_verdict(Verdict(Outcome(said["outcome"]), score, parts, **told, answer=read))
    except (ArithmeticError, TypeError, ValueError) as error:
        return unverifiable(f"it returned a Verdict that cannot be: {error}")


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"{value!r} is no number")
