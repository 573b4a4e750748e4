"""The live page: the report of runs that still train, and updates of a page that is open in a browser."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from groupwise.report.read_run import read
from groupwise.report.report import page, page_data
from groupwise.report.sample_selection import as_json
from groupwise.runs.phase_directories import runs_in
from groupwise.runs.run_layout import RunLayout


class LivePage:
    """The live report of some runs, and updates to it. `changes` reads the files again only if one has changed."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = tuple(runs)
        self._read: tuple[str, str] = "", ""  # the version of the newest data, and the data as JSON

    @property
    def directories(self) -> list[Path]:
        """The run directories on the page; a run with phases is replaced by the directories of its started phases."""
        return [path for run in self._runs for path in runs_in(run)]

    def version(self) -> str:
        """A hash of the sizes and times of the files that the page shows."""
        stamps = (f"{path}:{size}:{time}" for run in self.directories for path, size, time in _stamps(run))
        return hashlib.sha256("\n".join(stamps).encode(errors="surrogateescape")).hexdigest()[:16]

    def html(self) -> str:
        """The HTML page with the current data."""
        version = self.version()  # before the files are read: a change in between gives another version
        return page([read(path) for path in self.directories], version=version)

    def changes(self, since: str) -> str:
        """An update of the page as JSON: all its data, or only the version if that is still `since`."""
        version = self.version()
        if version == since:
            return as_json({"version": version})
        if self._read[0] != version:
            data = page_data([read(path) for path in self.directories])
            self._read = version, as_json(data | {"version": version})
        return self._read[1]


def _stamps(run: Path) -> Iterator[tuple[str, int, int]]:
    """(path, size, time of change) of each path that a run's page depends on; a missing one has no entry."""
    layout = RunLayout(run)
    with_warm_start = RunLayout(layout.warm_start).metrics
    paths = [layout.info, layout.recipe, layout.metrics, layout.timings, with_warm_start, layout.model]
    for folder in (layout.samples, layout.whatif):
        if folder.is_dir():
            paths += sorted(folder.iterdir())
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        yield str(path), stat.st_size, stat.st_mtime_ns
