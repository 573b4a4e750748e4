"""Inside the sandbox: a warm interpreter that forks one fresh process an execution, and never sees data.

Run by path, never imported, with nothing but the standard library. It is a *server* that gets a message for each
execution: its bounds, and three open files. One holds the order (code, function and arguments), one is its standard
input, one takes what it gives. The server passes them on unread to the process that it forks, the *answer*, so that no
execution inherits a byte of another from it. It watches CPU time and wall time, and says how the answer ended. The
answer reads its own order, is the first of a process namespace of its own, has no way to the host or to the server,
and dies with all that it started.
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
"""Imported before anything is asked, so that an answer's own import costs nothing; others are read from disk."""

STOP = b"stop"
"""The host's word for an answer that gives too much."""
ORDER = 4
"""Where the answer's process finds its order; it reads it when it is confined, and before it runs anything."""
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_PIDS, NEW_MOUNTS, NEW_IPC = 0x20000000, 0x20000, 0x8000000
Line = tuple[int, int, int, int]
"""An instruction of a filter: operation, lines to skip where it is true, where it is false, number."""
FILES = 1 << 24
"""Bytes of the private /tmp, and of any file in it."""


def main(isolated: bool) -> None:
    host = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 16))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(4):  # the answer's own; standard error stays for what goes wrong here
        if fd != 2:
            os.dup2(nothing, fd)
    os.environ.clear()
    _, (setup,), *_ = socket.recv_fds(host, 1 << 12, 1)
    try:
        load(json.loads(taken(setup)))
    except BaseException:
        tell(host, {"trouble": traceback.format_exc()[-2000:]})
        return
    law = forbidden()
    law = law if held(law) else None
    gc.collect()
    gc.freeze()
    tell(host, {"python": platform.python_version(), "calls": law is not None})
    self = os.pidfd_open(os.getpid())
    while True:
        message, files, *_ = socket.recv_fds(host, 1 << 12, 3)
        if not message:  # the host is gone
            return
        if message != STOP:  # for an answer that had already ended
            tell(host, watch(json.loads(message), files, host, self, isolated, law))


def load(setup: dict[str, Any]) -> None:
    """Imports and runs the trusted code that every execution finds loaded; nothing of an answer is known by then."""
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


def tell(host: socket.socket, words: dict[str, Any]) -> None:
    host.send(json.dumps(words).encode())


def taken(file: int) -> bytes:
    """Everything in a file, which is then closed. The host sees by its position that reading has begun."""
    with open(file, "rb") as opened:
        return opened.read(1) + opened.read()


def watch(
    bounds: dict[str, Any], files: list[int], host: socket.socket, self: int, isolated: bool, law: bytes | None
) -> dict[str, Any]:
    """One execution, and how it ended: the answer is killed when it has used its time or the host says stop."""
    if isolated:
        must(LIBC.unshare(NEW_PIDS))  # for the next child
    pid = os.fork()
    if not pid:
        code = 1
        try:
            confine(files, bounds, isolated, law)
            code = answer(json.loads(taken(ORDER)))
        finally:
            os._exit(code)
    if isolated:
        must(LIBC.setns(self, NEW_PIDS))  # back, or there could be no other
    for file in files:
        os.close(file)
    ended = os.pidfd_open(pid)
    end = followed(pid, ended, host, bounds)
    os.kill(pid, signal.SIGKILL)
    if not isolated:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    os.close(ended)
    cpu, code = used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status)
    if not end:
        end = "cpu" if cpu >= bounds["cpu"] else "exit"
    return {"end": end, "code": code, "cpu": cpu}


def followed(pid: int, ended: int, host: socket.socket, bounds: dict[str, Any]) -> str:
    """Why the answer is to be killed; nothing where it ended itself."""
    until = time.monotonic() + bounds["wall"]
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(ended, select.POLLIN)
    clock, cores = (~pid << 3) | 2, os.cpu_count() or 1  # the CPU clock of another process, as the kernel numbers it
    while True:
        spent = time.clock_gettime(clock)
        wait = min(until - time.monotonic(), (bounds["cpu"] - spent) / cores + 0.001)
        if spent >= bounds["cpu"]:
            return "cpu"
        if wait <= 0:
            return "wall"
        ready = [file for file, _ in poll.poll(math.ceil(wait * 1000))]
        if ended in ready:
            return ""
        if ready:  # the host says stop, or is gone
            host.recv(1 << 12)
            return "output"


def must(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# The answer's process


def confine(files: list[int], bounds: dict[str, Any], isolated: bool, law: bytes | None) -> None:
    """Everything that this process must not have is given up here, for good."""
    order, stdin, result = files
    os.setsid()
    if isolated:
        must(LIBC.unshare(NEW_MOUNTS | NEW_IPC))
        must(LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", 6, f"size={FILES},nr_inodes=1024,mode=700".encode()))
        os.chdir("/tmp")
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, fd in (
        (stdin, 0), (nothing, 1), (nothing, 2), (nothing, 3), (result, bounds["result"]), (order, ORDER)
    ):  # fmt: skip
        os.dup2(source, fd)
    os.closerange(ORDER + 1, 1 << 16)
    cpu = math.ceil(bounds["cpu"])
    for what, most in (
        ("CPU", cpu + 1), ("AS", bounds["memory"]), ("FSIZE", FILES), ("NOFILE", 64), ("NPROC", 64), ("CORE", 1),
        ("MEMLOCK", 0), ("MSGQUEUE", 0),
    ):  # fmt: skip
        number = getattr(resource, f"RLIMIT_{what}")
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))
    LIBC.prctl(47, 4, 0, 0, 0)  # no ambient capability, and below: none at all
    must(LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)))
    # Limit 0 alone stops no core dump to a program of the host, limit 1 does; and the limit could be lowered to 0.
    must(LIBC.prctl(DUMPABLE, 0, 0, 0, 0))
    if law is not None:
        enforce(law)


def answer(order: dict[str, Any]) -> int:
    """Run the code and say what it gave; the exit code is the program's."""
    code, function = order["code"], order.get("function")
    random.seed(0)
    if function is None:
        return program(code)
    say, dumps, plain_of = os.write, json.dumps, plain
    try:
        names: dict[str, Any] = module("answer")
        exec(compile(code, "<answer>", "exec", dont_inherit=True), names)
        if function not in names:
            raise NameError(f"there is no {function}")
        reply = {"value": plain_of(names[function](*order["args"]))}
    except BaseException as error:
        reply = {"error": told(error)}
    try:
        said = dumps(reply, allow_nan=False).encode()
    except BaseException as error:
        said = dumps({"error": told(error)}).encode()
    while said:
        said = said[say(3, said) :]
    return 0


def program(code: str) -> int:
    """A program from standard input to standard output, ended as Python ends one."""
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
        threading._shutdown()  # type: ignore[attr-defined]  (waits for its threads, as the end of a program does)
        sys.stdout.flush()
    except BaseException:
        status = status or 1
    return status & 255


def module(name: str) -> dict[str, Any]:
    """The names of a new module that `sys.modules` knows: dataclasses and typing look there."""
    sys.modules[name] = made = types.ModuleType(name)
    return made.__dict__


def plain(value: Any) -> Any:
    """The value in exact built-in types, a tuple as a list; TypeError or ValueError for anything else."""
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
            raise TypeError("it returned a dict with a key that is not text")
        return {key: plain(item) for key, item in value.items()}
    raise TypeError(f"it returned a value of type {kind.__name__}")


def told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return type(error).__name__[:200]


# Calls that the kernel refuses to an answer: a second wall behind the namespaces, and what they leave open

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {  # name: number on x86_64, on aarch64; 0 where there is none
    "fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "socket": (41, 198), "connect": (42, 203),
    "bind": (49, 200), "listen": (50, 201), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "userfaultfd": (323, 282),
    "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "personality": (135, 92),
    "fanotify_init": (300, 262), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "modify_ldt": (154, 0),
    "inotify_init": (253, 0), "inotify_init1": (294, 26),
}  # fmt: skip
IDLE = {
    "flock": (73, 32), "sync": (162, 81), "syncfs": (306, 267), "fsync": (74, 82), "fdatasync": (75, 83),
    "sync_file_range": (277, 84),
}  # fmt: skip
"""Calls that succeed and do nothing: an answer's files are its own and in memory, those that it can only read are the
host's, and neither a lock on them nor a write of the host's disks is its business."""
CLONE, CLONE3 = (56, 220), 435
THREAD = 0x10000
FCNTL, PRCTL = (72, 25), (157, 167)
COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
"""What fcntl may do: duplicate, flags, record locks (sqlite3 needs them; on a file that can only be read they are
shared). No lease, no notice of others' reads, no signal."""
DUMPABLE = 4


def forbidden() -> bytes | None:
    """A seccomp filter in the kernel's own code; None on a processor that we have no numbers for."""
    machine = platform.machine()
    if machine not in AUDIT:
        return None
    which = list(AUDIT).index(machine)
    load, equal, at_least, any_of, give = 0x20, 0x15, 0x35, 0x45, 0x06
    number, architecture, first, second = ((load, 0, 0, offset) for offset in (0, 4, 16, 24))
    allow, refuse, absent, idle = ((give, 0, 0, code) for code in (0x7FFF0000, 0x50001, 0x50000 | 38, 0x50000))

    def call(numbers: tuple[int, int], *then: Line) -> list[Line]:
        return [(equal, 0, len(then), numbers[which]), *then] if numbers[which] else []

    commands = [(equal, len(COMMANDS) - i, 0, command) for i, command in enumerate(COMMANDS)]
    lines = [
        *(architecture, (equal, 1, 0, AUDIT[machine]), refuse, number),
        *((at_least, 0, 1, 1 << 30), refuse),  # another call table of x86_64
        *(line for numbers in CALLS.values() for line in call(numbers, refuse)),
        *(line for numbers in IDLE.values() for line in call(numbers, idle)),
        *call((CLONE3, CLONE3), absent),  # glibc then asks with clone, whose flags can be read
        *call(CLONE, first, (any_of, 0, 1, THREAD), allow, refuse),
        *call(FCNTL, second, *commands, refuse, allow),
        *call(PRCTL, first, (equal, 0, 1, DUMPABLE), refuse, allow),
        allow,
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def enforce(law: bytes) -> None:
    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))

    must(LIBC.prctl(38, 1, 0, 0, 0))  # no new privileges
    must(LIBC.prctl(22, 2, ctypes.byref(Filter(len(law) // 8, law)), 0, 0))


def held(law: bytes | None) -> bool:
    """Whether this kernel takes the filter, and it forbids what it should."""
    if law is None:
        return False
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    code = 1
    with suppress(BaseException):
        enforce(law)
        try:
            os._exit(2 if os.fork() else 0)
        except PermissionError:
            code = 0
    os._exit(code)


if __name__ == "__main__":
    main(isolated=sys.argv[1:] == ["isolated"])
