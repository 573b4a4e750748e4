"""The server inside the sandbox: it forks a process per execution, and never reads that execution's code or data.

Run by path, never imported, with the standard library only. Its modules are loaded before the first execution. The
*server* gets a message for each execution: its limits and three open files. These are the job (code, function and
arguments), the standard input, and the file for the result. It passes them on, unread, to the process that it forks,
the *answer*. So no execution inherits data of another one. The server enforces CPU time, and reports how the answer
ended. The host enforces wall time and output: it gets an open file that refers to the answer's process, and sends STOP.
The answer reads its own job, is the first process of a new process namespace, has no connection to
host or server, and dies with all its children.
"""

import ctypes
import fcntl
import gc
import importlib
import json
import math
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from contextlib import suppress
from typing import Any

WARM = (
    "abc", "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "itertools", "numbers", "operator", "re", "statistics", "string", "textwrap", "typing",
)  # fmt: skip
"""Modules that the server imports at its start, so that model-written code imports them without delay."""

STOP = b"stop"
"""The host's message that an execution must be killed: it has too much output, or has slept too long."""
JOB = 4
"""The file descriptor from which an execution's process reads its code, after it has dropped its rights."""
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_PIDS, NEW_MOUNTS, NEW_IPC = 0x20000000, 0x20000, 0x8000000
DUMPABLE = 4
"""PR_SET_DUMPABLE of prctl(2): with 0, other processes cannot read this process's memory."""
FILES = 1 << 24
"""The size limit, in bytes, of the private /tmp and of any file in it."""


def main(isolated: bool) -> None:
    host = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 16))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(4):  # descriptors of the answer; standard error stays open for errors of the server
        if fd != 2:
            os.dup2(nothing, fd)
    os.environ.clear()
    _, (setup,), *_ = socket.recv_fds(host, 1 << 12, 1)
    try:
        settings = json.loads(read_all(setup))
        load(settings)
    except BaseException:
        send(host, {"error": traceback.format_exc()[-2000:]})
        return
    seccomp_filter = bytes.fromhex(settings["seccomp_filter"])
    seccomp_filter = seccomp_filter if filter_works(seccomp_filter) else None
    gc.collect()
    gc.freeze()
    send(host, {"python": platform.python_version(), "calls": seccomp_filter is not None})
    self = os.pidfd_open(os.getpid())
    while True:
        message, files, *_ = socket.recv_fds(host, 1 << 12, 3)
        if not message:  # the host has ended
            return
        if message != STOP:  # a STOP can arrive after its answer has ended
            send(host, execute(json.loads(message), files, host, self, isolated, seccomp_filter))


def load(setup: dict[str, Any]) -> None:
    """Imports and runs the trusted code, before the first job arrives. All executions share it."""
    sys.path += setup["path"]
    for name in (*WARM, *setup["warm"]):
        importlib.import_module(name)
    for name, source in setup["preload"].items():
        *parents, _ = name.split(".")
        for depth in range(1, len(parents) + 1):
            if (parent := ".".join(parents[:depth])) not in sys.modules:
                module(parent)["__path__"] = []
        names = module(name)
        names["__package__"] = ".".join(parents)
        exec(compile(source, f"<{name}>", "exec", dont_inherit=True), names)


def send(host: socket.socket, message: dict[str, Any]) -> None:
    host.send(json.dumps(message).encode())


def read_all(file: int) -> bytes:
    """Read a whole file and close it. Its position shows the host that it was read."""
    with open(file, "rb") as reader:
        return reader.read(1) + reader.read()


def execute(
    limits: dict[str, Any],
    files: list[int],
    host: socket.socket,
    self: int,
    isolated: bool,
    seccomp_filter: bytes | None,
) -> dict[str, Any]:
    """Runs one execution; returns how it ended. Kills its process at its CPU limit or when the host sends STOP."""
    if isolated:
        check(LIBC.unshare(NEW_PIDS))  # for the next child
    pid = os.fork()
    if not pid:
        code = 1
        try:
            confine(files, limits, isolated, seccomp_filter)
            code = run_job(json.loads(read_all(JOB)))
        finally:
            os._exit(code)
    if isolated:
        check(LIBC.setns(self, NEW_PIDS))  # return to the server's own namespace, else it could not fork again
    for file in files:
        os.close(file)
    process = os.pidfd_open(pid)
    socket.send_fds(host, [b"{}"], [process])
    end = wait_for_end(pid, process, host, limits)
    os.kill(pid, signal.SIGKILL)
    if not isolated:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    os.close(process)
    cpu, code = usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status)
    if not end:
        end = "cpu" if cpu >= limits["cpu"] else "exit"
    return {"end": end, "code": code, "cpu": cpu}


def wait_for_end(pid: int, process: int, host: socket.socket, limits: dict[str, Any]) -> str:
    """Wait for an execution: `cpu` at that limit, `stop` if the host sent STOP; empty if it ended by itself."""
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(process, select.POLLIN)
    clock, cores = (~pid << 3) | 2, os.cpu_count() or 1  # the kernel's number of another process's CPU clock
    while True:
        spent = time.clock_gettime(clock)
        wait = (limits["cpu"] - spent) / cores + 0.001
        if spent >= limits["cpu"]:
            return "cpu"
        ready = [file for file, _ in poll.poll(math.ceil(wait * 1000))]
        if process in ready:
            return ""
        if ready:  # the host sent STOP or has ended
            host.recv(1 << 12)
            return "stop"


def check(status: int) -> None:
    """Raise OSError if a call of libc failed: it returned -1."""
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# The answer's process


def confine(files: list[int], limits: dict[str, Any], isolated: bool, seccomp_filter: bytes | None) -> None:
    """Give up, for good, all rights of this process that model-written code must not have."""
    job, stdin, result = files
    os.setsid()
    if isolated:
        check(LIBC.unshare(NEW_MOUNTS | NEW_IPC))
        check(LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", 6, f"size={FILES},nr_inodes=1024,mode=700".encode()))
        os.chdir("/tmp")
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, fd in (
        (stdin, 0), (nothing, 1), (nothing, 2), (nothing, 3), (result, limits["result"]), (job, JOB)
    ):  # fmt: skip
        os.dup2(source, fd)
    os.closerange(JOB + 1, 1 << 16)
    cpu = math.ceil(limits["cpu"])
    for what, limit in (
        ("CPU", cpu + 1), ("AS", limits["memory"]), ("FSIZE", FILES), ("NOFILE", 64), ("NPROC", 64), ("CORE", 1),
        ("MEMLOCK", 0), ("MSGQUEUE", 0),
    ):  # fmt: skip
        kind = getattr(resource, f"RLIMIT_{what}")
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    LIBC.prctl(47, 4, 0, 0, 0)  # clear the ambient capabilities; capset clears all others
    check(LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)))
    # A core limit of 1 stops dumps to a host program, 0 does not; but code could lower the limit from 1 to 0.
    check(LIBC.prctl(DUMPABLE, 0, 0, 0, 0))
    if seccomp_filter is not None:
        install_filter(seccomp_filter)


def run_job(job: dict[str, Any]) -> int:
    """Run model-written code in this process, and write its value or error; returns the exit code."""
    code, function = job["code"], job.get("function")
    random.seed(0)
    if function is None:
        return run_program(code)
    write, dumps, to_plain = os.write, json.dumps, plain  # before the code can replace them
    try:
        names: dict[str, Any] = module("answer")
        exec(compile(code, "<answer>", "exec", dont_inherit=True), names)
        if function not in names:
            raise NameError(f"there is no {function}")
        reply = {"value": to_plain(names[function](*job["args"]))}
    except BaseException as error:
        reply = {"error": describe(error)}
    try:
        data = dumps(reply, allow_nan=False).encode()
    except BaseException as error:
        data = dumps({"error": describe(error)}).encode()
    while data:
        data = data[write(3, data) :]
    return 0


def run_program(code: str) -> int:
    """Run code as a program with standard input and output; returns the exit code that Python would return."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    status = 0
    try:
        exec(compile(code, "<answer>", "exec", dont_inherit=True), module("__main__"))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  (waits for threads, as Python does at its end)
        sys.stdout.flush()
    except BaseException:
        status = status or 1
    return status & 255


def module(name: str) -> dict[str, Any]:
    """Create an empty module, add it to `sys.modules` (dataclasses and typing need that) and return its globals."""
    sys.modules[name] = new_module = types.ModuleType(name)
    return new_module.__dict__


def plain(value: Any) -> Any:
    """Convert a value to JSON types (tuples to lists). TypeError or ValueError for anything else."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"it returned {value}")
        return value
    if kind in (list, tuple):
        return [plain(item) for item in value]
    if kind is dict:
        if any(type(key) is not str for key in value):
            raise TypeError("it returned a dict with a key that is not a string")
        return {key: plain(item) for key, item in value.items()}
    raise TypeError(f"it returned a value of type {kind.__name__}")


def describe(error: BaseException) -> str:
    """The type and the message of an exception, up to 200 characters."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return type(error).__name__[:200]


# The system-call filter: a second wall behind the namespaces. tools/seccomp_filter.py makes it


def install_filter(seccomp_filter: bytes) -> None:
    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    check(LIBC.prctl(38, 1, 0, 0, 0))  # no new privileges
    check(LIBC.prctl(22, 2, ctypes.byref(Filter(len(seccomp_filter) // 8, seccomp_filter)), 0, 0))


def filter_works(seccomp_filter: bytes) -> bool:
    """Whether there is a filter for this processor, the kernel accepts it, and it stops a fork."""
    if not seccomp_filter:
        return False
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    code = 1
    with suppress(BaseException):
        install_filter(seccomp_filter)
        try:
            os._exit(2 if os.fork() else 0)
        except PermissionError:
            code = 0
    os._exit(code)


if __name__ == "__main__":
    main(isolated=sys.argv[1:] == ["isolated"])
