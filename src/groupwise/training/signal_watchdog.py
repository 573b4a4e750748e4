"""Ends a run on a signal, also while the event loop is blocked, and reports the code that blocks it."""

import asyncio
import faulthandler
import math
import os
import signal
import stat
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from groupwise.core import visible
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.training.async_sampling import AHEAD

INTERRUPTED, TERMINATED = 130, 143
CODES = {"interrupted": INTERRUPTED, "terminated": TERMINATED}
"""Exit codes of a run after a signal."""
HEARTBEAT = 0.5
"""Seconds between two heartbeats of the event loop."""
STALL = 10.0
"""Seconds without a heartbeat after which a message names the code that blocks the event loop."""
AGAIN = 1.0
"""Seconds between two checks of an event loop that is blocked."""
PATIENCE = 5.0
"""Seconds after a signal until code that blocks the event loop is interrupted."""
WATCHED_PHASES = ("sample", "evaluate", AHEAD)
"""Phases of an iteration in which nothing may block the event loop. Learning, loading and saving may."""
FORWARD = NativeEngine.__module__
"""The engine's module. Its forward passes may block the event loop, too."""
JUDGES = ("SinglePromptSampler._judged", "CombinedVerifier._verdict", "EnvironmentThreads.call")
"""Qualified names of functions that call verifiers or environments. An exception in a call becomes a verdict."""
AGENT = "AgentCoroutine.step"
"""The qualified name of the function that runs an async agent. Its exceptions become verdicts, too."""


class BlockedStop(KeyboardInterrupt):
    """A stop was requested while the loop was blocked or waited in this phase, which was interrupted."""

    def __init__(self, cause: str, phase: str) -> None:
        super().__init__(cause)
        self.cause, self.phase = cause, phase


class SignalWatchdog:
    """A context in which the first signal calls `stop`, the second ends the run, the third the process.

    The signals are SIGINT, SIGTERM, and SIGHUP of a terminal that closes, unless it is ignored (`nohup`). Python's
    signal handlers run between two lines of code and during a regular expression, so they work while the loop is
    blocked. Each heartbeat of the loop resets a timer. If the loop is blocked for `STALL` seconds, `notify` gets a line
    about the blocking code. A verifier or environment that blocks for `deadline` seconds, and an agent that does for
    `agent_deadline` seconds, get a TimeoutError, which becomes a verdict. After a signal, code that blocks for
    `PATIENCE` seconds is interrupted with `BlockedStop`. Outside the main thread, and in a process that uses SIGALRM
    itself, nothing is watched.
    """

    def __init__(
        self,
        stop: Callable[[str], None],
        notify: Callable[[str], None],
        phase: Callable[[], str],
        deadline: float,
        agent_deadline: float = math.inf,
    ) -> None:
        self._stop, self._notify, self._phase = stop, notify, phase
        self._deadline, self._agent_deadline = deadline, agent_deadline
        self._cause, self._signals, self._interrupted = "", 0, False
        self._last_heartbeat = self._signalled = time.monotonic()
        self._reported = False
        self._watching = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        with suppress(ValueError):  # only the main thread may set handlers
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signum != signal.SIGHUP or signal.getsignal(signum) is signal.SIG_DFL:
                    self._handlers[signum] = signal.signal(signum, self._signal)
            if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
                self._handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._alarm)
                self._watching = True
                self._heartbeat()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._watching:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._timer.cancel()
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def _heartbeat(self) -> None:
        self._last_heartbeat, self._reported = time.monotonic(), False
        first = min(PATIENCE if self._cause else STALL, self._deadline, self._agent_deadline)
        signal.setitimer(signal.ITIMER_REAL, first, AGAIN)
        self._timer = self._loop.call_later(HEARTBEAT, self._heartbeat)

    def _signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            leave_closed_terminal()
        self._signals += 1
        if self._signals == 1:
            self._cause, self._signalled = "interrupted" if signum == signal.SIGINT else "terminated", time.monotonic()
            self._loop.call_soon_threadsafe(self._stop, self._cause)
            if self._watching:
                signal.setitimer(signal.ITIMER_REAL, PATIENCE, AGAIN)
        elif self._signals == 2:
            raise KeyboardInterrupt
        else:
            self._leave(frame)

    def _alarm(self, signum: int, frame: FrameType | None) -> None:
        phase, now = self._phase(), time.monotonic()
        stack = _stack(frame)
        if phase not in WATCHED_PHASES or any(f.f_globals.get("__name__") == FORWARD for f in stack):
            return
        blocked = now - self._last_heartbeat
        if not self._reported and (blocked >= min(STALL, self._deadline) or self._cause):
            self._reported = True
            self._notify(f"the event loop was blocked for {blocked:.0f} s in {where(stack)} ({phase})")
        waited = now - max(self._last_heartbeat, self._signalled)
        if self._cause and waited >= 2 * PATIENCE and self._interrupted:  # the code ignored the interrupt
            self._leave(frame)
        if self._cause and waited >= PATIENCE and not self._interrupted:
            self._interrupted = True
            raise BlockedStop(self._cause, phase)
        names = {frame.f_code.co_qualname for frame in stack}
        judge, agent = not names.isdisjoint(JUDGES), AGENT in names
        if (judge and blocked >= self._deadline) or (agent and blocked >= self._agent_deadline):
            raise TimeoutError(f"the call blocked the event loop for {blocked:.0f} s in {where(stack)}")

    def _leave(self, frame: FrameType | None) -> NoReturn:
        """End the process at once. Its workers and sandboxes end with it, and the lock becomes free."""
        self._notify(
            f"{self._cause} in {where(_stack(frame))}; continue from the last checkpoint with groupwise resume"
        )
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=False)
        os._exit(CODES[self._cause])


@contextmanager
def interrupt_handler_kept() -> Iterator[None]:
    """A context that keeps the handler of SIGINT: `asyncio.Runner` leaves its own one, and the run with it, behind."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        with suppress(ValueError):  # only the main thread may set handlers
            signal.signal(signal.SIGINT, handler)


def leave_closed_terminal() -> None:
    """Discard further output to a terminal that is closed: writing to it is an error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """A stack frame and its callers, innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def where(stack: list[FrameType]) -> str:
    """The innermost frame of a stack outside the standard library, as `my_file.py:3 grade`."""
    library = sysconfig.get_path("stdlib")
    frame = next((f for f in stack if not f.f_code.co_filename.startswith((library, "<frozen"))), None)
    return visible(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}") if frame else "?"
