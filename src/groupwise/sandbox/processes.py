"""Processes of our own behind a socket: a constant number of them, each killed with its process group."""

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class WorkerProcess:
    """One process and the socket to it, started again after it ended. Used by one thread at a time."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None

    def end(self) -> str:
        """Kills the process with its group; says how it ended."""
        self.kill()
        process, self.process = self.process, None
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        return f"exit code {process.wait()}" if process else "not running"

    def kill(self) -> None:
        """Kills only, so that a thread which waits for a reply sees the end; safe from any thread."""
        process = self.process
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                if sys.platform != "darwin":  # where a zombie is answered so
                    raise


C = TypeVar("C", bound=WorkerProcess)


class WorkerPool(Generic[C]):
    """Children that share the work, and as many threads that wait for them; ended with the last reference to it.

    It works from any thread and any event loop.
    """

    def __init__(self, children: Sequence[C], name: str) -> None:
        self.children = tuple(children)
        self._threads = ThreadPoolExecutor(len(children), thread_name_prefix=name)
        self._idle: SimpleQueue[C] = SimpleQueue()
        for child in children:
            self._idle.put(child)
        self._end = weakref.finalize(self, _close, self._threads, self.children, self._idle)

    def submit(self, call: Callable[..., T], *args: Any) -> "Future[T]":
        """`call(child, *args)` with a child that is idle, in a thread: a child ends with the thread that started it."""
        return self._threads.submit(self._with_one, call, args)

    def close(self) -> None:
        """Ends the children. Those of a host that is gone end by themselves."""
        self._end()

    def _with_one(self, call: Callable[..., T], args: tuple[Any, ...]) -> T:
        child = self._idle.get()
        try:
            return call(child, *args)
        finally:
            self._idle.put(child)


def _close(threads: ThreadPoolExecutor, children: Sequence[WorkerProcess], idle: "SimpleQueue[Any]") -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for child in children:
        child.kill()
    while not idle.empty():  # a busy one is ended by the thread that uses it
        idle.get_nowait().end()
