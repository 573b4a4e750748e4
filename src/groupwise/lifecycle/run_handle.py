"""A program's handle on a run, and how a run ended."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.training.progress_output import ProgressPrinter
from groupwise.training.run_recorder import RunRecorder


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: exit code, last message, and `stop_reason`, the reason of an early end ("" without one)."""

    stop_reason: str
    exit_code: int
    message: str = ""


class RunControl:
    """A program's handle on a run: it receives each iteration's metrics, and can stop the run from any thread.

    `on_iteration` gets the directory of the run, which may be a phase, and each line of metrics. `progress` makes the
    object that shows the progress of a run, from its number of iterations and those that are done.
    """

    def __init__(self, on_iteration: Callable[[Path, dict[str, Any]], object] = lambda run, line: None) -> None:
        self.on_iteration = on_iteration
        self.progress: Callable[[int, int], ProgressPrinter] = ProgressPrinter
        self._cause = ""
        self._stop: Callable[[str], None] | None = None
        self._over = False

    def stop(self, cause: str) -> bool:
        """Request that the run saves a checkpoint and ends at the next safe point, or at once if it has not started.

        Returns whether it will: not if it is over.
        """
        self._cause = self._cause or cause
        if self._stop is not None:
            self._stop(cause)
        return not self._over

    def close(self) -> None:
        """The run is over: nothing is left to stop."""
        self._over = True

    @contextlib.contextmanager
    def of(self, recorder: RunRecorder) -> Iterator[None]:
        """Connect `stop` to a running loop, for the duration of the context."""
        running = asyncio.get_running_loop()
        self._stop = lambda cause: running.call_soon_threadsafe(recorder.stop, cause) and None
        try:
            if self._cause:
                recorder.stop(self._cause)
            yield
        finally:
            self._stop = None
