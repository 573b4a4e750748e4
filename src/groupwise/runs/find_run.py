"""Finds runs by their name without the time: `first` is the newest directory `runs/first-<time>`; so is `runs/fir*`."""

import re
from pathlib import Path

from groupwise.core import BadData, or_near
from groupwise.models.model_directories import PACKAGED, SMOLLM2
from groupwise.runs.run_layout import RunLayout

SHOWN = 5
"""The most runs that an error lists."""
PARENT = Path("runs")
"""The directory that is searched for a run if its name contains no directory."""
TIME = re.compile(r"-(\d{8}-\d{6})(?:-(\d+))?$")
"""Pattern of the end of a run's name: the time of its start, and a number if several have the same time."""


def newest_run(name: str) -> str:
    """The newest run called `name-<time>`; `name` itself if it is a path that exists, or if there is no such run.

    A name without a directory is one of `runs/`. A name with `*` is a pattern: the newest run that matches it.
    """
    path = Path(name)
    if not path.name or path.exists():
        return name
    parent = path.parent if path.parent != Path() else PARENT
    ends = {other: TIME.search(other.name) for other in parent.glob(path.name if "*" in path.name else "*")}
    runs = {
        (end[1], int(end[2] or 1)): other
        for other, end in ends.items()
        if end and ("*" in path.name or other.name[: end.start()] == path.name) and RunLayout(other).is_run
    }
    return str(runs[max(runs)]) if runs else name


def run_or_model(name: str) -> str:
    """The newest run with this name, as in `newest_run`, if there is one; else the name, which may be a model's.

    The name of a packaged model is never a run. `BadData` for a path below `runs/` that does not exist, a missing run.
    """
    found = name if name in (*PACKAGED, SMOLLM2) else newest_run(name)
    if (Path(found).parts[:1] == PARENT.parts or TIME.search(found)) and not Path(found).exists():
        raise no_run(name)
    return found


def no_run(name: str) -> BadData:
    """The error for a run that does not exist. It lists the newest runs beside it, or names the directory searched."""
    parent = Path(name).parent if Path(name).parent != Path() else PARENT
    runs = [path.name for path in sorted(parent.glob("*"), key=modified, reverse=True) if RunLayout(path).is_run]
    evidence = (
        f"{parent} has {', '.join(runs[:SHOWN])}{' and others' * (len(runs) > SHOWN)}"
        if runs
        else (f"there is no directory {parent.absolute()}" if not parent.is_dir() else f"{parent} has no runs")
    )
    fix = "name a directory under runs/, which train prints, from the directory where the run was started"
    return BadData(f"{name} is not a run", evidence=evidence, fix=or_near(name, fix))


def modified(path: Path) -> float:
    """The time of a path's last change; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
