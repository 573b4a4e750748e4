"""Progress output: one live line on a terminal, plain lines in a pipe."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import TextIOBase
from typing import Any, TextIO

from groupwise.core import is_new_line, spelled, terminal_width, visible, wrapped
from groupwise.data import (
    ACCURACY_GREEDY,
    EVAL_LOSS,
    EVAL_TOKEN_ACCURACY,
    MEAN_LENGTH,
    REWARD,
    SCORE_GREEDY,
    STALENESS_MEAN,
    TOKENS_PER_SECOND,
    UNVERIFIABLE_HELD_OUT,
)

MINUTE = 60.0
"""The longest time without a line in a pipe, in seconds."""
TICK = 1.0
"""Seconds between two checks of the time that an iteration takes."""
Out = TextIO | TextIOBase
_OUT: ContextVar[Out | None] = ContextVar("out", default=None)


@contextmanager
def printed_to(out: Out) -> Iterator[None]:
    """A context in which notices and progress are printed to `out`, not to stderr: a notebook paints stderr red."""
    token = _OUT.set(out)
    try:
        yield
    finally:
        _OUT.reset(token)


def notify(line: str) -> None:
    """Print a line to stderr, or as `printed_to` says, in the language of the current call; in a sweep only once.

    Control characters in it are made visible. A terminal gets it wrapped between words.
    """
    with suppress(OSError):
        if is_new_line(line):
            out = _OUT.get() or sys.stderr
            print(wrapped(visible(spelled(line)), terminal_width(out, 0)), file=out, flush=True)


class ProgressPrinter:
    """Prints each iteration's number, reward, held-out accuracy or score, length, speed and the time left.

    `leading` is the metric in place of the reward: for stored answers, the loss.
    A terminal shows one line, rewritten in place. A pipe, or NO_COLOR, gets one line per tenth of the run, and at least
    one a minute, also within an iteration.
    """

    def __init__(self, iterations: int, done: int = 0, out: Out | None = None) -> None:
        self.iterations, self.first, self.out = iterations, done, out or _OUT.get() or sys.stderr
        self.live = self.out.isatty() and "NO_COLOR" not in os.environ
        self.held_out = ""
        self.leading = REWARD
        self.start = self.finished = self._written = time.monotonic()
        self.done, self._width, self._line = done, 0, ""
        self._lock = threading.RLock()

    def __call__(self, line: dict[str, Any], timing: dict[str, Any]) -> None:
        done = self.done = int(line["iteration"])
        self.finished = time.monotonic()
        figures = {
            "held-out loss": EVAL_LOSS,
            "token accuracy": EVAL_TOKEN_ACCURACY,
            "pair accuracy": "eval/rewards/accuracies",
            "held-out": ACCURACY_GREEDY,
            "held-out score": SCORE_GREEDY,
        }
        if evaluated := [f"  {name} {line[metric]:.3f}" for name, metric in figures.items() if metric in line]:
            self.held_out = "".join(evaluated)
        elif done == 0 or UNVERIFIABLE_HELD_OUT in line:  # an evaluation of no problem, or without a judged answer
            self.held_out = "  held-out -"
        text = f"{done:>{len(str(self.iterations))}}/{self.iterations}"
        if self.leading in line:
            text += f"  {self.leading} {line[self.leading]:.3f}"
        text += self.held_out
        if MEAN_LENGTH in line:
            text += f"  length {line[MEAN_LENGTH]:.1f}  {timing[TOKENS_PER_SECOND]:,.0f} tok/s"
        if STALENESS_MEAN in line:
            text += f"  staleness {line[STALENESS_MEAN]:.1f}"
        if rows := [f"{timing[name]:.0f}" for name in timing if name.startswith("engine/") and name.endswith("/rows")]:
            text += f"  rows {'+'.join(rows)}"
        text += self._left(done)
        self._line = text
        if self.live:
            self._rewrite(text)
        elif done in (self.first, self.iterations) or self._tenth(done) or self._is_silent():
            self._write(text + "\n")

    @contextmanager
    def watching(self, phase: Callable[[], str]) -> Iterator[None]:
        """A context in which a thread shows how long the current iteration takes: the loop may compute for minutes."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over, phase), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: threading.Event, phase: Callable[[], str]) -> None:
        while not over.wait(TICK):
            self.tick(phase())

    def tick(self, phase: str) -> None:
        """Show the seconds since the last iteration: in a terminal at the end of the line, in a pipe once a minute."""
        seconds = f"{time.monotonic() - self.finished:.0f} s"
        if self.live and self._width:
            self._rewrite(f"{self._line}  {phase} {seconds}")
        elif not self.live and self._is_silent():
            number = f"{max(self.done, 0):>{len(str(self.iterations))}}/{self.iterations}"
            self._write(f"{number}  {phase or 'working'}: {seconds} so far\n")

    def _is_silent(self) -> bool:
        return time.monotonic() - self._written >= MINUTE

    def _rewrite(self, text: str) -> None:
        """Replace the line of a terminal."""
        with self._lock:
            text = text[: self._columns() - 1]
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)

    def notify(self, text: str) -> None:
        """End the live line, and print a message in the language of the call. Control characters are visible."""
        with self._lock:
            self.end()
            self._write(visible(spelled(text), lines=True) + "\n")

    def end(self) -> None:
        """End the line that is rewritten in place, so that other output can follow."""
        with self._lock:
            if self.live and self._width:
                self._write("\n")
                self._width = 0

    def _write(self, text: str) -> None:
        with self._lock:
            self._written = time.monotonic()
            with suppress(OSError):  # the reader of the pipe may be gone; the run continues, and its files are complete
                self.out.write(text)
                self.out.flush()

    def _columns(self) -> int:
        """The current width of the terminal. A wrapped line could not be rewritten in place."""
        return terminal_width(self.out, 80)

    def _left(self, done: int) -> str:
        if done <= self.first or done >= self.iterations:
            return ""
        seconds = (time.monotonic() - self.start) / (done - self.first) * (self.iterations - done)
        return f"  {int(seconds // 60)}:{int(seconds % 60):02d} left"

    def _tenth(self, done: int) -> bool:
        return done * 10 // max(1, self.iterations) > (done - 1) * 10 // max(1, self.iterations)
