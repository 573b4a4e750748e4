"""Progress output: one live line on a terminal, plain lines in a pipe."""

import os
import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from groupwise.core import is_new_line, spelled, visible
from groupwise.data import (
    ACCURACY_GREEDY,
    MEAN_LENGTH,
    REWARD,
    SCORE_GREEDY,
    STALENESS_MEAN,
    TOKENS_PER_SECOND,
    UNVERIFIABLE_HELD_OUT,
)


def notify(line: str) -> None:
    """Print a line to stderr, in a sweep only once, in the language of the current call.

    Control characters in it are made visible.
    """
    with suppress(OSError):
        if is_new_line(line):
            print(visible(spelled(line)), file=sys.stderr, flush=True)


class Progress:
    """Prints each iteration's number, reward, held-out accuracy or score, length, speed and the time left.

    A terminal shows one line, rewritten in place. A pipe, or NO_COLOR, gets one line per tenth of the run.
    """

    def __init__(self, iterations: int, done: int = 0, out: TextIO | None = None) -> None:
        self.iterations, self.first, self.out = iterations, done, out or sys.stderr
        self.live = self.out.isatty() and "NO_COLOR" not in os.environ
        self.held_out = ""
        self.start = time.monotonic()
        self._width = 0

    def __call__(self, line: dict[str, Any], timing: dict[str, Any]) -> None:
        done = int(line["iteration"])
        figures = {"held-out": ACCURACY_GREEDY, "held-out score": SCORE_GREEDY}
        if evaluated := [f"  {name} {line[metric]:.3f}" for name, metric in figures.items() if metric in line]:
            self.held_out = "".join(evaluated)
        elif done == 0 or UNVERIFIABLE_HELD_OUT in line:  # an evaluation of no problem, or without a judged answer
            self.held_out = "  held-out -"
        text = f"{done:>{len(str(self.iterations))}}/{self.iterations}"
        if REWARD in line:
            text += f"  reward {line[REWARD]:.3f}"
        text += self.held_out
        if MEAN_LENGTH in line:
            text += f"  length {line[MEAN_LENGTH]:.1f}  {timing[TOKENS_PER_SECOND]:,.0f} tok/s"
        if STALENESS_MEAN in line:
            text += f"  staleness {line[STALENESS_MEAN]:.1f}"
        if rows := [f"{timing[name]:.0f}" for name in timing if name.startswith("engine/") and name.endswith("/rows")]:
            text += f"  rows {'+'.join(rows)}"
        text += self._left(done)
        if self.live:
            text = text[: self._columns() - 1]
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif done in (self.first, self.iterations) or self._tenth(done):
            self._write(text + "\n")

    def notify(self, text: str) -> None:
        """End the live line, and print a message in the language of the call. Control characters are visible."""
        self.end()
        self._write(visible(spelled(text), lines=True) + "\n")

    def end(self) -> None:
        """End the line that is rewritten in place, so that other output can follow."""
        if self.live and self._width:
            self._write("\n")
            self._width = 0

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the reader of the pipe may be gone; the run continues, and its files are complete
            self.out.write(text)
            self.out.flush()

    def _columns(self) -> int:
        """The current width of the terminal. A wrapped line could not be rewritten in place."""
        with suppress(OSError, ValueError):
            return os.get_terminal_size(self.out.fileno()).columns or 80
        return 80

    def _left(self, done: int) -> str:
        if done <= self.first or done >= self.iterations:
            return ""
        seconds = (time.monotonic() - self.start) / (done - self.first) * (self.iterations - done)
        return f"  {int(seconds // 60)}:{int(seconds % 60):02d} left"

    def _tenth(self, done: int) -> bool:
        return done * 10 // max(1, self.iterations) > (done - 1) * 10 // max(1, self.iterations)
