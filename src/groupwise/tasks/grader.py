"""The other side of `judge`: a process of its own that runs one function and answers in JSON lines.

Run by path, never imported, with nothing but the standard library: a killed one is soon replaced. Its input is a
socket; what the user's code prints goes to standard error, and standard input is empty for it.
"""

import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any


def main() -> None:
    host = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    threading.Thread(target=leave_with, args=(host,), daemon=True).start()
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
            tagged["said"] = getattr(said, "said", None)
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


def leave_with(host: socket.socket) -> None:
    """Ends this process and all that it started when the host is gone, also in the middle of a grade."""
    poll = select.poll()
    poll.register(host, 0)
    poll.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
