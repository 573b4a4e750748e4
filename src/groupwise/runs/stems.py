"""Runs by their name without the time: `first` is the newest directory `runs/first-<time>`."""

import re
from pathlib import Path

from groupwise.runs.layout import RunLayout

PARENT = Path("runs")
"""The directory of runs that are named without a directory."""
TIME = re.compile(r"-(\d{8}-\d{6})(?:-(\d+))?")
"""The end of a run's name: its time, and its number if several runs have the same time."""


def newest_run(name: str) -> str:
    """The newest run whose name is `name` and a time; `name` itself if it exists or if there is no such run.

    A name without a directory is one of `runs/`.
    """
    path = Path(name)
    if not path.name or path.exists():
        return name
    parent = path.parent if path.parent != Path() else PARENT
    ends = {other: TIME.fullmatch(other.name.removeprefix(path.name)) for other in parent.glob("*")}
    runs = {
        (end[1], int(end[2] or 1)): other
        for other, end in ends.items()
        if end and other.name.startswith(path.name) and RunLayout(other).is_run
    }
    return str(runs[max(runs)]) if runs else name
