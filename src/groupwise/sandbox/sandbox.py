"""Code that a model wrote, run where it can do no harm: bubblewrap around a warm interpreter, a fork an execution."""

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
from io import FileIO
from math import isfinite
from time import monotonic
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from groupwise.data import MissingRequirement
from groupwise.sandbox.command import QUIET, SERVER, bare, missing, refused, wrapped
from groupwise.sandbox.processes import WorkerPool, WorkerProcess
from groupwise.sandbox.view import PACKAGES, package

__all__ = ["Execution", "Limits", "Program", "Sandbox", "sandbox_trial"]

START = 60.0
"""Seconds that a sandbox may take to start; 0.2 is usual, and some seconds where it imports packages first."""
STOP = b"stop"
"""The word to the server for an answer that gives too much."""
GRACE = 5.0
"""Seconds beyond the wall time of an execution after which its sandbox counts as harmed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one execution may use: seconds of CPU and of wall time, bytes of memory and of output.

    The CPU time decides about an answer that computes for too long, so that a busy machine changes no verdict; the wall
    time ends one that sleeps.
    """

    cpu: float = 2.0
    wall: float = 10.0
    memory: int = 1 << 29
    output: int = 1 << 20

    def __post_init__(self) -> None:
        if not (0 < self.cpu <= self.wall < float("inf") and self.memory > 0 and self.output > 0):
            raise ValueError(f"{self}\nneeds 0 < cpu <= wall, and memory and output above 0")


@dataclass(frozen=True, slots=True)
class Program:
    """One execution: a `function` of the code called with `args`; without one, a program that reads `stdin`."""

    code: str
    function: str | None = None
    args: tuple[Any, ...] = ()
    stdin: str = ""


@dataclass(frozen=True, slots=True)
class Execution:
    """What an execution gave: the function's value, or the program's output as text; `trouble` where there is none.

    `end` says how: `done`; `failed` (an exception, an exit, no value, one that is not plain JSON); `cpu`, `wall` and
    `output` (a bound was met); `lost` (the sandbox itself failed, twice, and nothing is known of the program).
    """

    end: Literal["done", "failed", "cpu", "wall", "output", "lost"]
    value: Any = None
    error: str = ""
    cpu: float = 0.0


class Sandbox:
    """A constant number of `boxes` (default: one a core), each started when first needed and replaced when harmed.

    It works from any thread and any event loop; the threads that wait are its own. What happens inside cannot reach the
    network, files of the host, its processes or its environment, and nothing outlives an execution (docs/sandbox.md).
    `Environment` with the way out where this machine has no sandbox; with `unsafe` code runs without one, see there.

    Executions find the standard library. Three arguments add trusted code of ours, loaded once per box and shared by
    all of its executions, to which a model's text can be passed as an argument:

    - `packages`: installed distributions of pure Python, by the names that pip knows, each named itself (none that it
      requires is added): `("math-verify", "sympy", "mpmath")`. They are shown read-only; all others stay hidden.
    - `warm`: modules of them that each box imports when it starts, before the first execution: `("sympy",)`. A module
      that is first imported by an execution is imported again by each one, on its CPU time.
    - `preload`: source text by module name, run after `warm`, in this order; a later text may import an earlier one,
      also by a dotted name: `{"rules": "def twice(x): return 2 * x"}`. Then
      `Program("from rules import twice", "twice", (21,))` calls it without compiling it.

    A box whose warm or preloaded code raises does not start: `Environment`, with the traceback.
    """

    def __init__(
        self,
        bounds: Limits = Limits(),
        *,
        boxes: int | None = None,
        unsafe: bool = False,
        packages: Sequence[str] = (),
        warm: Sequence[str] = (),
        preload: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if (why := None if unsafe else missing()) is not None:
            raise why
        self.bounds = bounds
        stock = Stock(tuple(packages), tuple(warm), dict(preload))
        self._crew = WorkerPool(
            [SandboxProcess(unsafe, stock) for _ in range(boxes or len(os.sched_getaffinity(0)))], "sandbox"
        )
        self._separate: list[Sandbox] = []

    def run(self, programs: Iterable[Program]) -> list[Execution]:
        """What each program gave, in their order; as many at once as there are boxes. Blocks."""
        return [f.result() for f in [self._crew.submit(self._run, program) for program in programs]]

    async def execute(self, program: Program) -> Execution:
        """What one program gave, awaited."""
        return await asyncio.wrap_future(self.submit(program))

    def submit(self, program: Program) -> Future[Execution]:
        """What one program gives, for any thread or loop to wait for."""
        return self._crew.submit(self._run, program)

    def separate(self) -> "Sandbox":
        """A sandbox like this one with boxes of its own, as many again; closed with this one."""
        boxes = self._crew.children
        stock = boxes[0].stock
        more = Sandbox(self.bounds, boxes=len(boxes), unsafe=boxes[0].unsafe, **stock._asdict())
        self._separate.append(more)
        return more

    def about(self) -> dict[str, Any]:
        """What a started box says of itself: `python`, its version, and `calls`, whether system calls are filtered."""
        return self._crew.submit(self._about).result()

    def close(self) -> None:
        """Ends the boxes. Those of a host that is gone end by themselves."""
        for sandbox in (self, *self._separate):
            sandbox._crew.close()

    def _run(self, box: "SandboxProcess", program: Program) -> Execution:
        ran = box.run(program, self.bounds)
        return ran if ran.end != "lost" else box.run(program, self.bounds)  # once more, in a new box

    def _about(self, box: "SandboxProcess") -> dict[str, Any]:
        box.start()
        return box.about


class Stock(NamedTuple):
    """Trusted code that a box loads before its first execution, see `Sandbox`."""

    packages: tuple[str, ...]
    warm: tuple[str, ...]
    preload: dict[str, str]

    def order(self, unsafe: bool) -> dict[str, Any]:
        """The message to the server; without a sandbox it imports packages from their own directories."""
        path = [PACKAGES] if self.packages else []
        if unsafe:
            path = list(dict.fromkeys(os.path.dirname(one.source) for name in self.packages for one in package(name)))
        return {"path": path, "warm": self.warm, "preload": self.preload}


class SandboxProcess(WorkerProcess):
    """One sandbox with its server, replaced when it dies."""

    def __init__(self, unsafe: bool, stock: Stock) -> None:
        super().__init__()
        self.unsafe, self.stock = unsafe, stock
        self.about: dict[str, Any] = {}

    def start(self) -> None:
        """`Environment` where nothing can be started, with the cause."""
        if self.process is not None:
            return
        with open(SERVER, "rb") as server, tempfile.TemporaryFile() as errors:
            command = bare(server.fileno()) if self.unsafe else wrapped(server.fileno(), self.stock.packages)
            try:
                self.about = self.launch(command, server.fileno(), errors.fileno())
            except (OSError, EOFError, ValueError) as error:
                how = self.end()
                errors.seek(0)
                evidence = errors.read().decode(errors="replace").strip()[-2000:]
                raise refused(evidence or f"{error} ({how})") from error
        if trouble := self.about.get("trouble"):
            self.end()
            fix = "correct the arguments `packages`, `warm` and `preload` of Sandbox: they name this code"
            raise MissingRequirement(
                "the code that a sandbox loads at its start does not run", evidence=trouble, fix=fix
            )

    def launch(self, command: list[str], server: int, errors: int) -> dict[str, Any]:
        """Starts the server, has it load the stock, and returns its first message."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(server,),
                env=QUIET,
                cwd="/",
                start_new_session=True,
            )
        with filed(json.dumps(self.stock.order(self.unsafe)).encode()) as setup:
            socket.send_fds(self.socket, [b"load"], [setup])
        self.socket.settimeout(START)
        return self.hear()

    def run(self, program: Program, bounds: Limits) -> Execution:
        """What the program gave; `lost`, and this box ended, where its server did not do as it should."""
        self.start()
        order: dict[str, Any] = {"code": program.code}
        if program.function is not None:
            order |= {"function": program.function, "args": program.args}
        stdin = program.stdin.encode("utf-8", "surrogatepass")
        message = {"cpu": bounds.cpu, "wall": bounds.wall, "memory": bounds.memory}
        message |= {"result": 1 if program.function is None else 3}
        try:
            assert self.socket is not None, "a box that has started has a socket"
            with filed(json.dumps(order).encode()) as code, filed(stdin) as given:
                result, theirs = os.pipe()
                with open(result, "rb", buffering=0) as result:
                    try:
                        socket.send_fds(self.socket, [json.dumps(message).encode()], [code, given, theirs])
                    finally:
                        os.close(theirs)
                    reply, data = self.follow(result, bounds)
                if os.lseek(code, 0, os.SEEK_CUR) == 0:  # it was never read
                    raise ValueError("the answer's process could not be confined")
        except (OSError, EOFError, ValueError, KeyError) as error:
            return Execution("lost", error=f"the sandbox failed: {error or type(error).__name__} ({self.end()})")
        return read(reply, data, program)

    def follow(self, result: FileIO, bounds: Limits) -> tuple[dict[str, Any], bytes]:
        """How the answer ended, and what it gave; OSError (TimeoutError too), EOFError or ValueError for a lost one."""
        assert self.socket is not None, "a box that has started has a socket"
        os.set_blocking(result.fileno(), False)
        data, until = bytearray(), monotonic() + bounds.wall + GRACE
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(result, select.POLLIN)
        while True:
            ready = [file for file, _ in poll.poll(max(until - monotonic(), 0) * 1000)]
            if not ready:
                raise TimeoutError("no reply in time")
            if result.fileno() in ready and not more(result, data, bounds.output):
                poll.unregister(result)
                if len(data) > bounds.output:
                    self.socket.send(STOP)
            if self.socket.fileno() in ready:
                reply = self.hear()
                break
        more(result, data, bounds.output)
        return reply | ({"end": "output"} if len(data) > bounds.output else {}), bytes(data)

    def hear(self) -> dict[str, Any]:
        """A message of the server; EOFError where it has ended."""
        assert self.socket is not None, "a box that has started has a socket"
        if not (message := self.socket.recv(1 << 16)):
            raise EOFError("it ended")
        return json.loads(message)

    def end(self) -> str:
        self.about = {}
        return super().end()


@contextmanager
def filed(data: bytes) -> Iterator[int]:
    """A file in memory, at its beginning: no reader can make its writer wait."""
    file = os.memfd_create("groupwise")
    try:
        with open(file, "wb", closefd=False) as opened:
            opened.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def more(result: FileIO, data: bytearray, most: int) -> bool:
    """Adds what there is to `data`, up to a little more than `most`; whether more may come."""
    while len(data) <= most:
        chunk = result.read(1 << 16)
        if chunk is None:
            return True
        if not chunk:
            return False
        data += chunk
    return False


# What came back


def read(head: dict[str, Any], body: bytes, program: Program) -> Execution:
    """What the server's reply and the program's bytes mean. Nothing that the program says can be more than a value."""
    end, cpu = head["end"], head["cpu"]
    if end != "exit":
        return Execution(end, error=_BOUND[end], cpu=cpu)
    code = head["code"]
    if code < 0:
        return Execution("failed", error=f"killed by signal {-code}", cpu=cpu)
    if program.function is None:
        text = body.decode("utf-8", "replace")
        return Execution("failed", text, f"exit code {code}", cpu) if code else Execution("done", text, cpu=cpu)
    try:
        said = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        if type(said) is not dict or len(said) != 1:
            raise ValueError("not one value")
        if "value" in said:
            return Execution("done", said["value"], cpu=cpu)
        return Execution("failed", error=str(said["error"])[:200], cpu=cpu)
    except (ValueError, KeyError, RecursionError):
        return Execution(
            "failed", error="it ended without a value" if not body else "its value cannot be read", cpu=cpu
        )


_BOUND = {"cpu": "too much CPU time", "wall": "too much time", "output": "too much output"}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def sandbox_trial() -> dict[str, Any]:
    """Starts a sandbox and tells about it; `Environment` where there is none."""
    box = Sandbox(boxes=1)
    try:
        return box.about()
    finally:
        box.close()
