"""A pool of worker processes: each has a socket, and is killed together with the processes that it started."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import IO, Any, Generic, TypeVar

T = TypeVar("T")
LAST_LINES, LAST_BYTES = 20, 4096
"""The most of a process's output that an error shows."""
PR_SET_PDEATHSIG = 1


def last_lines(output: IO[bytes], start: int = 0) -> list[str]:
    """The last lines in the file of a process's output, which begins at the byte `start`.

    The file's position is shared with the process, which may be printing: it is not moved.
    """
    file = output.fileno()
    begin = max(os.fstat(file).st_size - LAST_BYTES, start)
    return os.pread(file, LAST_BYTES, begin).decode(errors="replace").splitlines()[-LAST_LINES:]


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, even while it is stopped. On Linux only.

    A program that replaces this one keeps that. Elsewhere, and in a running process, the end of a connection ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            sys.exit()


class WorkerProcess:
    """A worker process and its socket. It can be started again after it ended. One thread uses it at a time."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None

    def end(self) -> str:
        """Kills the process and its group; returns its exit code as text."""
        self.kill()
        process, self.process = self.process, None
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        return f"exit code {process.wait()}" if process else "not running"

    def kill(self) -> None:
        """Kills the process without waiting, so a thread that waits for its reply wakes up. Safe from any thread."""
        process = self.process
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                if sys.platform != "darwin":  # macOS raises this for a zombie
                    raise


W = TypeVar("W", bound=WorkerProcess)


class WorkerPool(Generic[W]):
    """A fixed number of worker processes, with a thread for each. They end with the last reference to the pool.

    Usable from any thread and any event loop.
    """

    def __init__(self, workers: Sequence[W], name: str) -> None:
        self.workers = tuple(workers)
        self._threads = ThreadPoolExecutor(len(workers), thread_name_prefix=name)
        self._idle: SimpleQueue[W] = SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._end = weakref.finalize(self, _close, self._threads, self.workers, self._idle)

    def submit(self, call: Callable[..., T], *args: Any) -> "Future[T]":
        """Run `call(worker, *args)` in a thread, with an idle worker; returns a future of the result."""
        return self._threads.submit(self._run, call, args)

    def close(self) -> None:
        """Ends the workers. If the host process dies, its workers end by themselves."""
        self._end()

    def _run(self, call: Callable[..., T], args: tuple[Any, ...]) -> T:
        worker = self._idle.get()
        try:
            return call(worker, *args)
        finally:
            self._idle.put(worker)


def _close(threads: ThreadPoolExecutor, workers: Sequence[WorkerProcess], idle: "SimpleQueue[Any]") -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()
    while not idle.empty():  # the thread that uses a busy worker ends it
        idle.get_nowait().end()
