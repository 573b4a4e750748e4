"""A notebook's cell while a run trains: a table of its iterations with curves, updated every second."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from io import StringIO
from typing import Any

from groupwise.core import spelled, visible
from groupwise.data import ACCURACY_GREEDY, EVAL_LOSS, MEAN_LENGTH, REWARD, SCORE_GREEDY, TOKENS_PER_SECOND
from groupwise.report.report import escaped
from groupwise.training.progress_output import TICK, ProgressPrinter, printed_to

__all__ = ["LiveTable", "cell_output", "live_table"]

COLUMNS: Mapping[str, str] = {
    EVAL_LOSS: "held-out loss", REWARD: "reward", ACCURACY_GREEDY: "held-out", SCORE_GREEDY: "held-out score",
    MEAN_LENGTH: "length", TOKENS_PER_SECOND: "tok/s",
}  # fmt: skip
"""The columns of the table, by metric."""
CURVES = (EVAL_LOSS, REWARD, ACCURACY_GREEDY, SCORE_GREEDY)
ROWS = 8
"""The newest iterations that the table shows."""
WIDTH, HEIGHT = 120, 24
"""The size of a curve, in pixels."""


def is_notebook() -> bool:
    """Whether this program is a kernel of IPython that can display HTML."""
    shell = sys.modules.get("IPython")
    current = getattr(shell, "get_ipython", lambda: None)()
    return current is not None and hasattr(current, "kernel")


def cell_output() -> AbstractContextManager[None]:
    """A context in which notices are plain output of a notebook's cell; without a notebook they go to stderr."""
    return printed_to(sys.stdout) if is_notebook() else nullcontext()


def live_table() -> "LiveTable | None":
    """The table of a notebook's cell; None outside a notebook."""
    if not is_notebook():
        return None
    display = import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return LiveTable(lambda page: handle.update(display.HTML(page)))


class TableProgress(ProgressPrinter):
    """The progress of a run as rows of a table. The loop writes it, and the notebook's thread reads it."""

    def __init__(self, iterations: int, done: int = 0) -> None:
        super().__init__(iterations, done, StringIO())
        self.rows: list[dict[str, float]] = []
        self.notes: list[str] = []
        self.phase: Callable[[], str] = str

    def __call__(self, line: dict[str, Any], timing: dict[str, Any]) -> None:
        super().__call__(line, timing)
        self.out = StringIO()
        figures = {**timing, **line}
        shown = {name: float(figures[name]) for name in COLUMNS if isinstance(figures.get(name), int | float)}
        if REWARD not in line:  # of the evaluation before the first iteration
            shown.pop(TOKENS_PER_SECOND, None)
        self.rows.append({"iteration": int(line["iteration"]), **shown})

    def notify(self, text: str) -> None:
        """Add a message below the table."""
        self.notes.append(visible(spelled(text), lines=True))

    @contextmanager
    def watching(self, phase: Callable[[], str]) -> Iterator[None]:
        """A context in which the table names the phase of the loop. The notebook's thread counts the seconds."""
        self.phase = phase
        try:
            yield
        finally:
            self.phase = str

    def html(self, *, ended: bool) -> str:
        """The table as HTML. All texts are escaped."""
        done = max(self.done, 0)
        status = f"{done} of {self.iterations} iterations{self._left(done)}"
        if not ended:
            status += f"; {self.phase() or 'working'}: {time.monotonic() - self.finished:.0f} s"
        names = [name for name in COLUMNS if any(name in row for row in self.rows)]
        head = "".join(f"<th>{COLUMNS[name]}</th>" for name in names)
        curves = "".join(f"<td>{curve(self.rows, name) if name in CURVES else ''}</td>" for name in names)
        body = "".join(_row(row, names) for row in self.rows[-ROWS:])
        notes = "\n".join(escaped(line) for note in self.notes for line in note.splitlines())
        return (
            f"<p><b>{escaped(status)}</b></p><table><tr><th>iteration</th>{head}</tr>{body}"
            f"<tr><td></td>{curves}</tr></table><pre>{notes}</pre>"
        )


def _row(row: Mapping[str, float], names: Sequence[str]) -> str:
    digits = {MEAN_LENGTH: 1, TOKENS_PER_SECOND: 0}
    cells = (f"<td>{row[name]:,.{digits.get(name, 3)}f}</td>" if name in row else "<td></td>" for name in names)
    return f"<tr><td>{row['iteration']}</td>{''.join(cells)}</tr>"


def curve(rows: Sequence[Mapping[str, float]], name: str) -> str:
    """The curve of a metric as SVG; empty with fewer than two finite values.

    >>> curve([{"iteration": 0, "reward": 0.0}, {"iteration": 1, "reward": 1.0}], "reward").count("polyline")
    1
    """
    points = [(row["iteration"], row[name]) for row in rows if name in row and abs(row[name]) < float("inf")]
    if len(points) < 2:
        return ""
    (left, *_, right), values = [x for x, _ in points], [y for _, y in points]
    low, high = min(values), max(values)
    across, up = max(right - left, 1), max(high - low, 1e-12)
    drawn = " ".join(f"{(x - left) / across * WIDTH:.1f},{(1 - (y - low) / up) * HEIGHT + 2:.1f}" for x, y in points)
    line = f'<polyline points="{drawn}" fill="none" stroke="#0068a8" stroke-width="2"/>'
    return f'<svg width="{WIDTH}" height="{HEIGHT + 4}" viewBox="0 0 {WIDTH} {HEIGHT + 4}">{line}</svg>'


class LiveTable:
    """The display of a cell. `show` replaces its HTML."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self._show, self._runs, self._shown = show, list[TableProgress](), 0.0

    def progress(self, iterations: int, done: int) -> TableProgress:
        """The progress of one run; a run of phases has several."""
        self._runs.append(TableProgress(iterations, done))
        return self._runs[-1]

    def refresh(self, *, ended: bool = False) -> None:
        """Show the table again, once in `TICK` seconds, and when the run has `ended`."""
        if self._runs and (ended or time.monotonic() - self._shown >= TICK):
            self._shown = time.monotonic()
            last = self._runs[-1]
            self._show("".join(run.html(ended=ended or run is not last) for run in self._runs))
