"""Signals that end a run also while its event loop stands still, and a line that names what holds the loop up."""

import asyncio
import faulthandler
import os
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from groupwise.data import visible

INTERRUPTED, TERMINATED = 130, 143
CODES = {"interrupted": INTERRUPTED, "terminated": TERMINATED}
"""Exit codes of a run that a signal ended."""
BEAT = 0.5
"""Seconds between two signs of life of the loop."""
STALL = 10.0
"""Seconds without one after which a line names what the loop does."""
AGAIN = 1.0
"""Seconds between two looks at a loop that stands still."""
PATIENCE = 5.0
"""Seconds that a signal waits for a loop that stands still, before it breaks off what holds it up."""
TURNING = ("sample", "evaluate")
"""Phases in which the loop has to turn. Learning, loading and saving may hold it for as long as they take."""
FORWARD = "groupwise.rollout.engine"
"""The engine's module: a forward of the model may hold the loop, too."""
JUDGES = ("DrawSampler._judged", "Several._asked", "House.call")
"""Callers that make a verdict of whatever a verifier or an environment raises."""


class Stuck(KeyboardInterrupt):
    """A signal came and the loop stood still in this phase: what held it up was broken off."""

    def __init__(self, why: str, phase: str) -> None:
        super().__init__(why)
        self.why, self.phase = why, phase


class Watchdog:
    """Within it the first SIGINT or SIGTERM calls `stop` in the loop, the second ends the run, the third the process.

    Python's own handlers run between two lines of code and while a pattern is matched, so they need no turn of the
    loop. A timer that each turn sets back finds a loop that stands still: `say` gets a line about it after `STALL`
    seconds. A verifier that holds the loop for `deadline` seconds gets a TimeoutError, and its answer a verdict. After
    a signal, whatever holds the loop for `PATIENCE` seconds is broken off with `Stuck`. Outside the main thread, and
    in a process that uses SIGALRM itself, nothing is watched.
    """

    def __init__(
        self, stop: Callable[[str], None], say: Callable[[str], None], phase: Callable[[], str], deadline: float
    ) -> None:
        self._stop, self._say, self._phase, self._deadline = stop, say, phase, deadline
        self._why, self._signals, self._broken = "", 0, False
        self._turned = self._asked = time.monotonic()
        self._named = False
        self._watches = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        with suppress(ValueError):  # only the main thread may listen
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._signal)
            if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
                self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._alarm)
                self._watches = True
                self._beat()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._watches:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _beat(self) -> None:
        self._turned, self._named = time.monotonic(), False
        signal.setitimer(signal.ITIMER_REAL, min(PATIENCE if self._why else STALL, self._deadline), AGAIN)
        self._timer = self._loop.call_later(BEAT, self._beat)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            self._why, self._asked = "interrupted" if number == signal.SIGINT else "terminated", time.monotonic()
            self._loop.call_soon_threadsafe(self._stop, self._why)
            if self._watches:
                signal.setitimer(signal.ITIMER_REAL, PATIENCE, AGAIN)
        elif self._signals == 2:
            raise KeyboardInterrupt
        else:
            self._leave(frame)

    def _alarm(self, number: int, frame: FrameType | None) -> None:
        phase, now = self._phase(), time.monotonic()
        stack = _stack(frame)
        if phase not in TURNING or any(f.f_globals.get("__name__") == FORWARD for f in stack):
            return
        still = now - self._turned
        if not self._named and (still >= min(STALL, self._deadline) or self._why):
            self._named = True
            self._say(f"the event loop has stood still for {still:.0f} s in {where(stack)} ({phase})")
        held = now - max(self._turned, self._asked)
        if self._why and held >= 2 * PATIENCE and self._broken:  # it goes on for all that
            self._leave(frame)
        if self._why and held >= PATIENCE and not self._broken:
            self._broken = True
            raise Stuck(self._why, phase)
        if still >= self._deadline and any(f.f_code.co_qualname in JUDGES for f in stack):
            raise TimeoutError(f"it held the event loop for {still:.0f} s in {where(stack)}")

    def _leave(self, frame: FrameType | None) -> NoReturn:
        """The end of the process, whatever holds it up. Workers and sandboxes end with it; the lock is free."""
        self._say(f"{self._why} in {where(_stack(frame))}; go on from the last checkpoint with groupwise resume")
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=False)
        os._exit(CODES[self._why])


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frame and its callers, the innermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def where(stack: list[FrameType]) -> str:
    """The innermost place outside the standard library, as `my_file.py:3 grade`."""
    library = sysconfig.get_path("stdlib")
    frame = next((f for f in stack if not f.f_code.co_filename.startswith((library, "<frozen"))), None)
    return visible(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}") if frame else "?"
