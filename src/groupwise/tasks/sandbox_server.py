"""Inside the sandbox: a warm interpreter that forks one fresh process an execution.

Run by path, never imported, with nothing but the standard library. Its input is a socket to the host: a frame a
request (8 bytes of length, then JSON), and a frame a reply (a line of JSON, then as many raw bytes as it says). The
*server* only forks, watches CPU time, wall time and output, and replies; it runs nothing of the answer. The *answer's
process* is the first of a process namespace of its own, has no way to the host, and dies with all that it started.
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

READY = b"+"
"""What the answer's process says first, before it runs anything that it was given."""
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_PIDS, NEW_MOUNTS, NEW_IPC = 0x20000000, 0x20000, 0x8000000
FILES = 1 << 24
"""Bytes of the private /tmp, and of any file in it."""


def main(isolated: bool) -> None:
    host = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 16))
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(4):  # the answer's own; standard error stays for what goes wrong here
        if fd != 2:
            os.dup2(nothing, fd)
    os.environ.clear()
    try:
        load(json.loads(frame(host)))
    except BaseException:
        host.sendall(framed({"trouble": traceback.format_exc()[-2000:]}))
        return
    law = forbidden()
    law = law if held(law) else None
    gc.collect()
    gc.freeze()
    host.sendall(framed({"python": platform.python_version(), "calls": law is not None}))
    self = os.pidfd_open(os.getpid())
    while order := frame(host):
        host.sendall(watch(json.loads(order), self, isolated, law))


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


def frame(host: socket.socket) -> bytes:
    """The next request; nothing when the host is gone."""
    head = taken(host, 8)
    return taken(host, struct.unpack(">Q", head)[0]) if head else b""


def taken(host: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (got := host.recv(min(size - len(data), 1 << 16))):
            return b""
        data += got
    return bytes(data)


def framed(head: dict[str, Any], body: bytes = b"") -> bytes:
    return json.dumps({**head, "size": len(body)}).encode() + b"\n" + body


def watch(order: dict[str, Any], self: int, isolated: bool, law: bytes | None) -> bytes:
    """One execution, and the reply: the answer's process is killed when it has used its time or said too much."""
    theirs, out = os.pipe()
    given = os.memfd_create("stdin")
    written(given, order["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(given, 0, os.SEEK_SET)
    if isolated:
        must(LIBC.unshare(NEW_PIDS))  # for the next child
    pid = os.fork()
    if not pid:
        code = 1
        try:
            confine(given, out, order, isolated, law)
            code = answer(order)
        finally:
            os._exit(code)
    if isolated:
        must(LIBC.setns(self, NEW_PIDS))  # back, or there could be no other
    os.close(out)
    os.close(given)
    os.set_blocking(theirs, False)
    ended = os.pidfd_open(pid)
    end, said = followed(pid, ended, theirs, order)
    os.kill(pid, signal.SIGKILL)
    if not isolated:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    os.close(theirs)
    os.close(ended)
    if not said.startswith(READY):
        raise RuntimeError("the answer's process could not be confined")
    cpu, code = used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status)
    if not end:
        end = "cpu" if cpu >= order["cpu"] else "exit"
    return framed({"end": end, "code": code, "cpu": cpu}, said[len(READY) :])


def followed(pid: int, ended: int, theirs: int, order: dict[str, Any]) -> tuple[str, bytes]:
    """Why it was ended (nothing where it ended itself), and what it said."""
    said, until = bytearray(), time.monotonic() + order["wall"]
    poll = select.poll()
    poll.register(theirs, select.POLLIN)
    poll.register(ended, select.POLLIN)
    clock, cores = (~pid << 3) | 2, os.cpu_count() or 1  # the CPU clock of another process, as the kernel numbers it
    while True:
        spent = time.clock_gettime(clock)
        wait = min(until - time.monotonic(), (order["cpu"] - spent) / cores + 0.001)
        if spent >= order["cpu"]:
            return "cpu", bytes(said)
        if wait <= 0:
            return "wall", bytes(said)
        seen = [fd for fd, _ in poll.poll(math.ceil(wait * 1000))]
        if theirs in seen:
            with suppress(BlockingIOError):
                while got := os.read(theirs, 1 << 16):
                    said += got
                    if len(said) > order["output"] + len(READY):
                        return "output", bytes(said[:1])
                poll.unregister(theirs)  # it has closed its end
        elif ended in seen:
            return "", bytes(said)


def must(failed: int) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def written(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# The answer's process


def confine(given: int, out: int, order: dict[str, Any], isolated: bool, law: bytes | None) -> None:
    """Everything that this process must not have is given up here, for good."""
    os.setsid()
    if isolated:
        must(LIBC.unshare(NEW_MOUNTS | NEW_IPC))
        must(LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", 6, f"size={FILES},nr_inodes=1024,mode=700".encode()))
        os.chdir("/tmp")
    nothing = os.open(os.devnull, os.O_RDWR)
    result = 3 if "function" in order else 1
    for source, fd in ((given, 0), (nothing, 1), (nothing, 2), (nothing, 3), (out, result)):
        os.dup2(source, fd)
    os.closerange(4, 1 << 16)
    cpu = math.ceil(order["cpu"])
    for what, most in (
        ("CPU", cpu + 1), ("AS", order["memory"]), ("FSIZE", FILES), ("NOFILE", 64), ("NPROC", 64), ("CORE", 0),
        ("MEMLOCK", 0), ("MSGQUEUE", 0),
    ):  # fmt: skip
        number = getattr(resource, f"RLIMIT_{what}")
        hard = resource.getrlimit(number)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (most, most))
    LIBC.prctl(47, 4, 0, 0, 0)  # no ambient capability, and below: none at all
    must(LIBC.capset(struct.pack("=Ii", 0x20080522, 0), bytes(24)))
    if law is not None:
        enforce(law)
    os.write(result, READY)


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
}  # fmt: skip
CLONE, CLONE3 = (56, 220), 435
THREAD = 0x10000


def forbidden() -> bytes | None:
    """A seccomp filter in the kernel's own code; None on a processor that we have no numbers for."""
    machine = platform.machine()
    if machine not in AUDIT:
        return None
    which = list(AUDIT).index(machine)
    numbers = [pair[which] for pair in CALLS.values() if pair[which]]
    load, equal, at_least, any_of, give = 0x20, 0x15, 0x35, 0x45, 0x06
    refuse, absent, allow = 0x50000 | 1, 0x50000 | 38, 0x7FFF0000  # EPERM, ENOSYS
    tail = [
        (equal, 0, 1, CLONE3), (give, 0, 0, absent),  # glibc then asks with clone, whose flags can be read
        (equal, 0, 2, CLONE[which]), (load, 0, 0, 16), (any_of, 0, 1, THREAD),
        (give, 0, 0, allow), (give, 0, 0, refuse),
    ]  # fmt: skip
    last = len(numbers) + len(tail) - 1
    lines = [(load, 0, 0, 4), (equal, 1, 0, AUDIT[machine]), (give, 0, 0, refuse), (load, 0, 0, 0)]
    lines += [(at_least, last + 0, 0, 1 << 30)]  # another call table of x86_64
    lines += [(equal, last - i - 1, 0, number) for i, number in enumerate(numbers)]
    return b"".join(struct.pack("=HBBI", *line) for line in [*lines, *tail])


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
