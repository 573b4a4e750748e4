"""A shell whose `groupwise` and `python` are forks of one process that has imported the package.

`run` gives a command line to a real shell, so that pipes, quotes and globs work. Its PATH begins with two small
programs. Each sends its arguments, directory, environment and standard streams to the server, and the server forks.
The imports of every command, two to four seconds of them, are thus done once, also by the workers of one run of the
tests. A program that is killed kills its fork.
As a script this file is the server.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

PROGRAM = """\
#!{python} -ISE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    sys.exit(int(server.makefile().read() or 1))
"""
FOLDER = "GROUPWISE_WARM_SHELL"
"""The variable with the folder of the server."""
STARTED: list[subprocess.Popen[bytes]] = []
"""The server, in the process that started it."""
OPTIONAL = ("transformers.modeling_utils", "peft")
LATE = ("groupwise.__main__", "numpy.ctypeslib", "numpy.ma", "encodings.utf_8_sig", "encodings.utf_32_le")
"""Modules that most commands import while they run."""


def run(line: str, directory: Path) -> str:
    """Type one line; return what it prints. AssertionError where its exit code is not 0."""
    env = {**environment(), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        line, shell=True, cwd=directory, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment() -> dict[str, str]:
    """The variables of this process, with a PATH that begins with the two programs."""
    programs = [str(start()), str(Path(sys.executable).parent)]
    return {**os.environ, "PATH": os.pathsep.join((*programs, os.environ["PATH"]))}


def share() -> None:
    """Make the folder of the server. The processes that this one starts find it, and share the server.

    The server reads from a FIFO in it, which has no writer after the end of this process: the server ends with it.
    """
    folder = tempfile.mkdtemp(prefix="warm-")
    os.mkfifo(f"{folder}/alive")
    os.open(f"{folder}/alive", os.O_RDWR)
    os.environ[FOLDER] = folder
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)


@cache
def start() -> Path:
    """Start the server, unless a process that shares it has. Return its folder, with the two programs."""
    if FOLDER not in os.environ:
        share()
    folder = Path(os.environ[FOLDER])
    address = str(folder / "server")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(address):
            for name in ("groupwise", "python"):
                (folder / name).write_text(PROGRAM.format(python=sys.executable, address=address, name=name))
                (folder / name).chmod(0o700)
            with (folder / "alive").open("rb", buffering=0) as alive:
                words = [sys.executable, __file__, address]
                server = subprocess.Popen(words, stdin=alive, stdout=subprocess.PIPE, start_new_session=True)
            assert server.stdout and server.stdout.readline() == b"ready\n"
            STARTED.append(server)
    return folder


def serve(address: str) -> None:
    """Fork for each connection, until the process that made its folder is gone."""
    warm()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while 0 not in (readable := select.select([listener, 0], [], [])[0]):
            connection = readable[0].accept()[0]
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the answering forks
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(connection)
                return
            connection.close()
    shutil.rmtree(Path(address).parent, ignore_errors=True)


def warm() -> None:
    """Import what commands import."""
    import groupwise

    for module in pkgutil.walk_packages(groupwise.__path__, "groupwise."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in (*LATE, *OPTIONAL):
        with suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])  # the first one imports for a second and a half
    groupwise.tasks.named_task("calculator").build(lambda text: ())  # computes its held-out problems
    gc.freeze()


def answer(connection: socket.socket) -> None:
    """Run the command of a connection in one more fork, and send its exit code. Kill it if the program has ended."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    name, words, directory, environment = json.loads(connection.makefile().readline())
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        end(name, words)

    def outlive() -> None:
        if not connection.recv(1):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    for stream in streams:
        os.close(stream)
    threading.Thread(target=outlive, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ConnectionError):  # the program was killed, and needs no answer
        connection.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def end(name: str, words: list[str]) -> None:
    """Execute a command, and end as an interpreter does.

    The modules are not taken down: it would copy each page that the fork shares, which takes longer than most commands.
    """
    code: Any = 1
    try:
        code = execute(name, words)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    code = code if isinstance(code, int) else int(code is not None)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code)


def execute(name: str, words: list[str]) -> Any:
    """What `groupwise WORDS`, or `python` with `FILE WORDS`, `-c CODE WORDS` or `-m MODULE WORDS` does."""
    if name == "groupwise":
        sys.argv[:] = ["groupwise", *words]
        sys.path.pop(0)
        return importlib.import_module("groupwise.__main__").main()
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True) and 0
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path[0] = ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        return 0
    sys.argv[:] = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    return runpy.run_path(words[0], run_name="__main__") and 0


if __name__ == "__main__":
    serve(sys.argv[1])
