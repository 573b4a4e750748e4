"""The worker process of a grade function: it runs the function and replies in JSON lines.

Run by path, never imported, with the standard library only, so a killed worker is replaced quickly. Its input is a
socket. The user's code prints to standard error and gets an empty standard input.

The process forks. The child runs the function; the parent, the *supervisor*, runs no user code. On Linux all processes
that the child starts remain descendants of the supervisor, even one in a new session whose parent has ended. The
supervisor ends with its child, on SIGTERM, or with the host. Before that it kills all its descendants.
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
from functools import partial
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
        supervise(child, host, wake)
    control(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    wake.close()
    waker.close()
    serve(host)


def serve(host: socket.socket) -> None:
    """Loads the function, then replies to each line with the result of one call."""
    lines = host.makefile("rb")
    spec = json.loads(lines.readline())
    if spec["memory"] and sys.platform == "linux":  # macOS refuses this limit
        resource.setrlimit(resource.RLIMIT_AS, (spec["memory"], spec["memory"]))
    grade, error = load(spec)
    send(host, {"error": error} if error else {})
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in lines:
        # CPU time of this process only, so a busy machine changes no verdict. The kernel also interrupts C code.
        signal.setitimer(signal.ITIMER_PROF, spec["cpu"])
        reply = (
            {"error": error, "loaded": False}
            if grade is None
            else call(grade, spec, *json.loads(line, object_hook=partial(array, spec["array"])))
        )
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(host, reply)


def array(key: str, fields: dict[str, Any]) -> Any:
    """An object of JSON with this key as a float32 array of NumPy; any other object unchanged."""
    if key not in fields:
        return fields
    import base64  # most functions get no arrays, and their workers start without NumPy

    import numpy

    return numpy.frombuffer(bytearray(base64.b64decode(fields[key])), "<f4").reshape(fields["shape"])


def load(spec: dict[str, Any]) -> tuple[Callable[..., Any] | None, str]:
    """The function, and the error if it does not load. The host sends the source: new workers run the same code."""
    try:
        sys.path[:0] = [spec["path"]] if spec["path"] else []
        module = types.ModuleType(spec["module"])
        module.__file__ = spec["file"]
        sys.modules[module.__name__] = module
        exec(compile(spec["source"], spec["file"], "exec"), module.__dict__)
        function: Any = module
        for name in spec["function"].split("."):
            function = getattr(function, name)
        return function, ""
    except BaseException as error:
        return None, f"{spec['file']} does not load: {describe(error, spec)}"


def call(
    grade: Callable[..., Any],
    spec: dict[str, Any],
    arguments: list[Any],
    named: dict[str, Any],
    count: int | None = None,
) -> dict[str, Any]:
    """Call the function; return its grade as JSON, or its error. With `count`, it must return a list of that length."""
    try:
        result = awaited(grade(*arguments, **named))
        if count is None:
            reply = grade_of(result)
        elif (grades := list_of(result)) is None or len(grades) != count:
            length = "" if grades is None else f" of {len(grades)}"
            expected = f"expected a list of {count} grades, one per answer"
            return {"error": f"it returned {type(result).__name__}{length}: {expected}"}
        else:
            reply = {"grades": [grade_of(one) for one in grades]}
        json.dumps(reply)
        return reply
    except BaseException as error:
        return {"error": describe(error, spec)}


def awaited(result: Any) -> Any:
    """The result of an `async` function's call; any other value unchanged."""
    if not isinstance(result, types.CoroutineType):
        return result
    import asyncio  # a plain function does without

    return asyncio.run(result)


def grade_of(result: Any) -> dict[str, Any]:
    """One grade as JSON: a value, the fields of a Verdict, or an error."""
    if callable(getattr(result, "item", None)):  # a number of numpy or torch
        result = result.item()
    if type(result).__name__ == "Verdict":
        fields: dict[str, Any] = {name: getattr(result, name) for name in ("score", "feedback", "cause")}
        fields["answer"] = getattr(result, "answer", None)
        fields["steps"] = {name: list(map(list, steps)) for name, steps in getattr(result, "step_scores", {}).items()}
        return {"verdict": {"outcome": int(result.outcome), "subscores": dict(result.subscores), **fields}}
    if isinstance(result, bool | int | float):
        return {"value": result}
    if isinstance(result, dict) and isinstance(result.get("score"), int | float):  # as functions of verl return it
        return {"value": {str(name): x for name, x in result.items() if isinstance(x, int | float)}}
    return {"error": f"it returned {type(result).__name__}: expected True, False, a number or a Verdict"}


def list_of(result: Any) -> list[Any] | None:
    """The grades of a list, a tuple, or an array of numpy or torch; None for anything else."""
    if callable(getattr(result, "tolist", None)):
        result = result.tolist()
    return list(result) if isinstance(result, list | tuple) else None


def describe(error: BaseException, spec: dict[str, Any]) -> str:
    """The innermost line of the user's folder that raised, and the exception: `v.py:9 in raises: KeyError: 'boom'`.

    At most 500 characters.
    """
    location, trace, folder = "", error.__traceback__, spec["path"]
    while folder and trace is not None:
        code = trace.tb_frame.f_code
        if (
            code.co_filename.startswith(folder + os.sep)
            and "site-packages" not in code.co_filename
            and code.co_filename != __file__
        ):
            location = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}: "
        trace = trace.tb_next
    return f"{location}{type(error).__name__}: {error}"[:500]


def send(host: socket.socket, reply: dict[str, Any]) -> None:
    host.sendall(json.dumps(reply).encode() + b"\n")


# The supervisor


def supervise(child: int, host: socket.socket, wake: socket.socket) -> NoReturn:
    """Waits until the child ends, the host closes the socket or SIGTERM arrives; kills all descendants, and exits."""
    poll = select.poll()
    poll.register(host, 0)
    poll.register(wake, select.POLLIN)
    status = None
    while status is None:
        events = dict(poll.poll())
        if host.fileno() in events or signal.SIGTERM in wake.recv(64):
            break
        status = reap(child)
    end_all()
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        control(PR_SET_DUMPABLE, 0)
        with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def reap(child: int) -> int | None:
    """Collect the exit status of all ended processes; returns the child's status if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (process := os.waitpid(-1, os.WNOHANG))[0]:
            status = process[1] if process[0] == child else status
    return status


def end_all() -> None:
    """Kills child processes until none is left: the children of a killed process become children of this one."""
    while killed := [pid for pid in children() if kill(pid)]:
        for pid in killed:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children() -> list[int]:
    """The ids of this process's children; empty without `/proc`."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                pids.append(int(stat.parent.name))
    return pids


def kill(pid: int) -> bool:
    """Kills a process; False if that is not possible, as for the process of another user."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def control(option: int, value: int) -> None:
    """Calls prctl(2), on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
