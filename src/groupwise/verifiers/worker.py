"""The other side of `judge`: a process of its own that runs one function and answers in JSON lines.

Run by path, never imported, with nothing but the standard library: a killed one is soon replaced. Its input is a
socket; what the user's code prints goes to standard error, and standard input is empty for it.

The process forks. The child runs the function; the parent, the attendant, runs nothing of the user's. On Linux every
process that the child starts stays below the attendant, also one with a session of its own whose parent has ended.
The attendant ends with its child, on SIGTERM, or with the host, and kills all of them before.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def main() -> None:
    host = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    control(PR_SET_CHILD_SUBREAPER, 1)
    if child := os.fork():
        attend(child, host, wake)
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    wake.close()
    waker.close()
    serve(host)


def serve(host: socket.socket) -> None:
    """Loads the function and answers each call, line by line."""
    lines = host.makefile("rb")
    order = json.loads(lines.readline())
    if order["memory"]:
        resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
    grade, trouble = load(order)
    send(host, {"error": trouble} if trouble else {})
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in lines:
        # The time of this process alone: a loaded machine changes no verdict. The kernel ends it, also inside C code.
        signal.setitimer(signal.ITIMER_PROF, order["cpu"])
        reply = {"error": trouble} if grade is None else judged(grade, json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(host, reply)


def load(order: dict[str, Any]) -> tuple[Callable[..., Any] | None, str]:
    """The function, from the source that the host read: a worker that replaces another runs the same code."""
    try:
        sys.path[:0] = [order["path"]] if order["path"] else []
        module = types.ModuleType(order["module"])
        module.__file__ = order["file"]
        sys.modules[module.__name__] = module
        exec(compile(order["source"], order["file"], "exec"), module.__dict__)
        found: Any = module
        for name in order["function"].split("."):
            found = getattr(found, name)
        return found, ""
    except BaseException as error:
        return None, f"{order['file']} does not load: {told(error)}"


def judged(grade: Callable[..., Any], asked: list[Any]) -> dict[str, Any]:
    try:
        said = grade(*asked)
        if callable(getattr(said, "item", None)):  # a number of numpy or torch
            said = said.item()
        if type(said).__name__ == "Verdict":
            fields = ("score", "feedback", "cause")
            tagged = {name: getattr(said, name) for name in fields}
            tagged["answer"] = getattr(said, "answer", None)
            reply = {"verdict": {"outcome": int(said.outcome), "parts": dict(said.parts), **tagged}}
        elif isinstance(said, bool | int | float):
            reply = {"value": said}
        else:
            reply = {"error": f"it returned {type(said).__name__}"}
        json.dumps(reply)
        return reply
    except BaseException as error:
        return {"error": told(error)}


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def send(host: socket.socket, reply: dict[str, Any]) -> None:
    host.sendall(json.dumps(reply).encode() + b"\n")


# The attendant


def attend(child: int, host: socket.socket, wake: socket.socket) -> NoReturn:
    """Waits for the child, for the host's end of the socket, or for SIGTERM; then ends in the way the child did."""
    poll = select.poll()
    poll.register(host, 0)
    poll.register(wake, select.POLLIN)
    status = None
    while status is None:
        events = dict(poll.poll())
        if host.fileno() in events or signal.SIGTERM in wake.recv(64):
            break
        status = reaped(child)
    end_all()
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        control(PR_SET_DUMPABLE, 0)
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def reaped(child: int) -> int | None:
    """The child's status if it has ended; takes up every other process that has."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == child else status
    return status


def end_all() -> None:
    """Kills the processes below this one, until none is left: those of a killed one are then this one's."""
    while killed := [pid for pid in children() if kill(pid)]:
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children() -> list[int]:
    """The processes whose parent this one is; none where there is no `/proc`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


def kill(pid: int) -> bool:
    """Whether a process could be killed; one with another user's rights cannot."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def control(option: int, value: int) -> None:
    """prctl(2) where there is one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
