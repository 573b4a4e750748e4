"""Runs model-written code in a sandbox: bubblewrap around a warm Python server that forks once per execution."""

import asyncio
import json
import os
import select
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import FileIO
from math import ceil, isfinite
from time import monotonic
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from groupwise.core import MissingRequirement
from groupwise.sandbox.bubblewrap_command import (
    ENVIRONMENT,
    SERVER,
    missing_requirement,
    sandbox_command,
    seccomp_filter,
    start_error,
    unsafe_command,
)
from groupwise.sandbox.mounted_files import PACKAGES, package
from groupwise.sandbox.wall_limit import WallTimeLimit, process_of, thread_times
from groupwise.sandbox.worker_pool import WorkerPool, WorkerProcess

__all__ = ["ExecutionInput", "ExecutionLimits", "ExecutionResult", "Sandbox", "sandbox_trial"]

START = 60.0
"""Seconds that a sandbox may take to start; 0.2 is usual, and a few seconds if it imports packages."""
STOP = b"stop"
"""The message to the server to kill an execution."""
GRACE = 60.0
"""Seconds that the server may take to start an execution, or to end it, until its process counts as lost."""


@dataclass(frozen=True, slots=True)
class ExecutionLimits:
    """The limits of one execution: seconds of CPU and of wall time, bytes of memory and of output.

    CPU time ends an answer that computes too long. Wall time ends one that sleeps: time in which a thread of the answer
    computes or waits for a processor does not count. So a busy machine changes no verdict to *wrong*. An answer that
    the machine keeps waiting ends as `busy` after 10 times `wall_seconds`.
    """

    cpu_seconds: float = 2.0
    wall_seconds: float = 10.0
    memory_bytes: int = 1 << 29
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if not (
            0 < self.cpu_seconds <= self.wall_seconds < float("inf") and self.memory_bytes > 0 and self.output_bytes > 0
        ):
            raise ValueError(f"{self}\nneeds 0 < cpu <= wall, and memory and output above 0")


@dataclass(frozen=True, slots=True)
class ExecutionInput:
    """The input of one execution: call `function_name` of the code with `function_args`, or run the code on `stdin`."""

    code: str
    function_name: str | None = None
    function_args: tuple[Any, ...] = ()
    stdin: str = ""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of one execution: the function's value or the program's output, and `error` if it failed.

    `end_reason` is `done`; `failed` (an exception, an exit, no value, a value that is not plain JSON); `cpu_seconds`,
    `wall` or `output` (that limit ended it); `busy` (the machine had no time for it, so there is no result); or `lost`
    (the sandbox itself failed twice, so there is no result). `cpu_seconds` is in seconds.
    """

    end_reason: Literal["done", "failed", "cpu", "wall", "output", "busy", "lost"]
    return_value: Any = None
    error: str = ""
    cpu_seconds: float = 0.0

    @property
    def no_result(self) -> bool:
        """Whether the machine is at fault, so that the code cannot be judged."""
        return self.end_reason in ("busy", "lost")


class Sandbox:
    """A pool of sandbox processes for model-written code; each starts at its first use and is replaced if it is lost.

    `boxes` is the number of processes (default: one per core). Usable from any thread and any event loop. Code inside
    cannot reach the network, the host's files, processes or environment, and nothing outlives an execution
    (docs/sandbox.md). `MissingRequirement`, with a fix, if this machine cannot start a sandbox. `unsafe` runs code
    without bubblewrap, see there.

    Executions can import the standard library. Three arguments add trusted code, which each process loads once and
    all of its executions share. A model's text can be an argument of that code:

    - `packages`: installed pure-Python distributions, by their names for pip: `("math-verify", "sympy", "mpmath")`.
      Name requirements too; they are not added. The packages are read-only, and all others stay hidden.
    - `imports`: modules of these packages that each process imports at its start: `("sympy",)`. Otherwise each
      execution imports the module again, within its CPU time.
    - `preload`: source text by module name, run after `imports` in this order. A later text may import an earlier one,
      also under a dotted name: `{"rules": "def twice(x): return 2 * x"}`. Then
      `ExecutionInput("from rules import twice", "twice", (21,))` calls it without compiling it.

    If imported or preloaded code raises, the process does not start: `MissingRequirement`, with the traceback.
    """

    def __init__(
        self,
        limits: ExecutionLimits = ExecutionLimits(),
        *,
        boxes: int | None = None,
        unsafe: bool = False,
        packages: Sequence[str] = (),
        imports: Sequence[str] = (),
        preload: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if (error := missing_requirement(unsafe=unsafe)) is not None:
            raise error
        self.limits = limits
        trusted = PreloadedCode(tuple(packages), tuple(imports), dict(preload))
        count = boxes or len(os.sched_getaffinity(0))
        self._pool = WorkerPool([SandboxProcess(unsafe, trusted) for _ in range(count)], "sandbox")
        self._separate: list[Sandbox] = []

    def run(self, programs: Iterable[ExecutionInput]) -> list[ExecutionResult]:
        """Runs the programs, as many in parallel as there are processes; results in the same order. Blocks."""
        return [f.result() for f in [self._pool.submit(self._run, program) for program in programs]]

    async def execute(self, program: ExecutionInput) -> ExecutionResult:
        """Runs one program without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(program))

    def submit(self, program: ExecutionInput) -> Future[ExecutionResult]:
        """Runs one program; the future can be awaited from any thread or loop."""
        return self._pool.submit(self._run, program)

    def separate(self) -> "Sandbox":
        """A sandbox with the same settings and as many separate processes. It closes with this one."""
        processes = self._pool.workers
        first = processes[0]
        sandbox = Sandbox(self.limits, boxes=len(processes), unsafe=first.unsafe, **first.trusted._asdict())
        self._separate.append(sandbox)
        return sandbox

    def info(self) -> dict[str, Any]:
        """Start a process, and describe it: `python`, its version; `calls`, whether system calls are filtered."""
        return self._pool.submit(self._info).result()

    def close(self) -> None:
        """Ends the processes. If the host process dies, they end by themselves."""
        for sandbox in (self, *self._separate):
            sandbox._pool.close()

    def _run(self, process: "SandboxProcess", program: ExecutionInput) -> ExecutionResult:
        execution = process.run(program, self.limits)
        return execution if execution.end_reason != "lost" else process.run(program, self.limits)  # in a new process

    def _info(self, process: "SandboxProcess") -> dict[str, Any]:
        process.start()
        return process.info


class PreloadedCode(NamedTuple):
    """What a sandbox process loads before its first execution: `packages`, `imports` and `preload`."""

    packages: tuple[str, ...]
    imports: tuple[str, ...]
    preload: dict[str, str]

    def setup(self, unsafe: bool) -> dict[str, Any]:
        """The first message to the server: what to import and load. `unsafe` uses the host's package directories."""
        path = [PACKAGES] if self.packages else []
        if unsafe:
            sources = (mount.source for name in self.packages for mount in package(name))
            path = list(dict.fromkeys(map(os.path.dirname, sources)))
        return {"path": path, "warm": self.imports, "preload": self.preload, "seccomp_filter": seccomp_filter().hex()}


class SandboxProcess(WorkerProcess):
    """One sandbox process with its server; it restarts at the next use after it was lost."""

    def __init__(self, unsafe: bool, trusted: PreloadedCode) -> None:
        super().__init__()
        self.unsafe, self.trusted = unsafe, trusted
        self.info: dict[str, Any] = {}

    def start(self) -> None:
        """Starts the process if it does not run. `MissingRequirement`, with the cause, if it cannot start."""
        if self.process is not None:
            return
        with open(SERVER, "rb") as server, tempfile.TemporaryFile() as errors:
            source, packages = server.fileno(), self.trusted.packages
            command = unsafe_command(source) if self.unsafe else sandbox_command(source, packages)
            try:
                self.info = self.launch(command, source, errors.fileno())
            except (OSError, EOFError, ValueError) as error:
                exit_status = self.end()
                errors.seek(0)
                evidence = errors.read().decode(errors="replace").strip()[-2000:]
                raise start_error(evidence or f"{error} ({exit_status})") from error
        if error := self.info.get("error"):
            self.end()
            fix = "correct the arguments `packages`, `imports` and `preload` of Sandbox: they name this code"
            what = "the trusted code that a sandbox loads at its start raises an error"
            raise MissingRequirement(what, evidence=error, fix=fix)

    def launch(self, command: list[str], server: int, errors: int) -> dict[str, Any]:
        """Starts the server, sends it the setup, and returns its first message."""
        self.socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            self.process = subprocess.Popen(
                command,
                stdin=other_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(server,),
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        with memory_file(json.dumps(self.trusted.setup(self.unsafe)).encode()) as setup:
            socket.send_fds(self.socket, [b"load"], [setup])
        self.socket.settimeout(START)
        return self.receive()[0]

    def run(self, program: ExecutionInput, limits: ExecutionLimits) -> ExecutionResult:
        """Run a program. If the server fails, the result is `lost`, and this process is ended."""
        self.start()
        job: dict[str, Any] = {"code": program.code}
        if program.function_name is not None:
            job |= {"function": program.function_name, "args": program.function_args}
        stdin = program.stdin.encode("utf-8", "surrogatepass")
        message = {"cpu": limits.cpu_seconds, "memory": limits.memory_bytes}
        message |= {"result": 1 if program.function_name is None else 3}
        try:
            assert self.socket is not None, "a started process has a socket"
            with memory_file(json.dumps(job).encode()) as job_file, memory_file(stdin) as stdin_file:
                result, write_end = os.pipe()
                with open(result, "rb", buffering=0) as result:
                    try:
                        files = [job_file, stdin_file, write_end]
                        socket.send_fds(self.socket, [json.dumps(message).encode()], files)
                    finally:
                        os.close(write_end)
                    reply, data = self.wait(result, limits)
                if os.lseek(job_file, 0, os.SEEK_CUR) == 0:  # the answer's process never read it
                    raise ValueError("the process of the model's code could not be confined, so the code did not start")
        except (OSError, EOFError, ValueError, KeyError) as error:
            return ExecutionResult("lost", error=f"the sandbox failed: {error or type(error).__name__} ({self.end()})")
        return to_execution(reply, data, program)

    def wait(self, result: FileIO, limits: ExecutionLimits) -> tuple[dict[str, Any], bytes]:
        """Wait for an execution's end: the server's reply, and the output of the answer's code.

        OSError (TimeoutError too), EOFError or ValueError if the process is lost.
        """
        assert self.socket is not None, "a started process has a socket"
        os.set_blocking(result.fileno(), False)
        data, until, limit, ended_by = bytearray(), monotonic() + GRACE, None, ""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(result, select.POLLIN)
        while True:
            due = until if limit is None or ended_by else limit.next_check_time_seconds
            ready = [file for file, _ in poll.poll(ceil(max(due - monotonic(), 0) * 1000))]
            reached = ""
            if result.fileno() in ready and not read_available(result, data, limits.output_bytes):
                poll.unregister(result)
                reached = "output" if len(data) > limits.output_bytes else ""
            if self.socket.fileno() in ready:
                message, process = self.receive()
                if process is None:
                    break
                limit = WallTimeLimit(limits.wall_seconds, partial(thread_times, process), monotonic())
            elif limit is None or ended_by:
                if monotonic() >= until:
                    raise TimeoutError("the server did not reply in time")
            elif monotonic() >= limit.next_check_time_seconds:
                reached = reached or limit.look(monotonic())
            if reached and not ended_by:
                self.socket.send(STOP)
                ended_by, until = reached, monotonic() + GRACE
        read_available(result, data, limits.output_bytes)
        ended_by = "output" if len(data) > limits.output_bytes else ended_by
        ended = {"end": ended_by} if ended_by == "output" or message["end"] == "stop" else {}
        return message | ended, bytes(data)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """The next message of the server, and the process that it refers to. EOFError if the server has ended."""
        assert self.socket is not None, "a started process has a socket"
        message, files, *_ = socket.recv_fds(self.socket, 1 << 16, 1)
        if not message:
            raise EOFError("the sandbox process ended")
        process = None
        for file in files:
            process = process_of(file)
            os.close(file)
        return json.loads(message), process

    def end(self) -> str:
        self.info = {}
        return super().end()


@contextmanager
def memory_file(data: bytes) -> Iterator[int]:
    """The descriptor of a file in memory. Unlike with a pipe, a slow reader cannot block the writer."""
    file = os.memfd_create("groupwise")
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def read_available(result: FileIO, data: bytearray, limit: int) -> bool:
    """Read the available bytes of a pipe into `data`; False at its end or above `limit` bytes, else True."""
    while len(data) <= limit:
        chunk = result.read(1 << 16)
        if chunk is None:
            return True
        if not chunk:
            return False
        data += chunk
    return False


# Results


def to_execution(head: dict[str, Any], body: bytes, program: ExecutionInput) -> ExecutionResult:
    """An execution's result, from the server's reply and the untrusted output; `failed` if that cannot be read."""
    end, cpu = head["end"], head["cpu"]
    if end != "exit":
        return ExecutionResult(end, error=_LIMIT[end], cpu_seconds=cpu)
    code = head["code"]
    if code < 0:
        return ExecutionResult("failed", error=f"killed by signal {-code}", cpu_seconds=cpu)
    if program.function_name is None:
        text = body.decode("utf-8", "replace")
        return (
            ExecutionResult("failed", text, f"exit code {code}", cpu)
            if code
            else ExecutionResult("done", text, cpu_seconds=cpu)
        )
    try:
        message = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        if type(message) is not dict or len(message) != 1:
            raise ValueError("the result is not a JSON object with one key")
        if "value" in message:
            return ExecutionResult("done", message["value"], cpu_seconds=cpu)
        return ExecutionResult("failed", error=str(message["error"])[:200], cpu_seconds=cpu)
    except (ValueError, KeyError, RecursionError):
        error = "its value cannot be read" if body else "it ended without a value"
        return ExecutionResult("failed", error=error, cpu_seconds=cpu)


_LIMIT = {
    "cpu": "too much CPU time",
    "wall": "too much time",
    "output": "too much output",
    "busy": "the machine is too busy: the code waited for a processor",
}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON: write a finite number, or null")


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def sandbox_trial() -> dict[str, Any]:
    """Test whether a sandbox can start: returns its `info`, or raises `MissingRequirement`."""
    sandbox = Sandbox(boxes=1)
    try:
        return sandbox.info()
    finally:
        sandbox.close()
