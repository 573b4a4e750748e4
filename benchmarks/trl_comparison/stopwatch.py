"""Wall and CPU seconds of iterations and phases, and memory, measured in the same way in both systems."""

import os
import platform
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.trl_comparison.turns import wait

MIB = 1 << 20


class Stopwatch:
    """Measures wall and CPU seconds of each iteration and phase. Time in a nested phase counts only for that phase.

    Before each iteration in `turns` it prints its measurements with `about`, and waits.
    """

    def __init__(self, turns: Container[int] = (), about: Mapping[str, Any] | None = None) -> None:
        self.turns, self.about = turns, about or {}
        self.iterations: list[dict[str, Any]] = []
        self.floor = resident()
        """Resident MiB after all imports, before a model exists."""
        self.start = 0.0
        """Seconds from the start of the process to its first iteration."""
        self.peak = 0.0
        """Peak MiB up to the end of the last iteration; excludes saving."""
        self._now: dict[str, Any] = {}
        self._inside: list[str] = []
        self._mark = self._began = (0.0, 0.0)

    def begin(self) -> None:
        """Start an iteration; ends the current one."""
        self.end()
        if len(self.iterations) in self.turns:
            wait(self.as_json())
        self.start = self.start or age()
        self._now = {"phases": {}}
        self._mark = self._began = clocks()

    def end(self) -> None:
        """End the iteration."""
        if self._now:
            seconds, cpu = clocks()
            self._now |= {"seconds": seconds - self._began[0], "cpu": cpu - self._began[1]}
            self.iterations.append(self._now)
            self._now, self.peak = {}, peak()

    def note(self, **numbers: float) -> None:
        """Add numbers to the current iteration."""
        self._now |= numbers

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count time for `name`, and not for the enclosing phase."""
        self._count()
        self._inside.append(name)
        try:
            yield
        finally:
            self._count()
            self._inside.pop()

    def _count(self) -> None:
        now = clocks()
        if self._now and self._inside:
            wall, cpu = self._now["phases"].get(self._inside[-1], (0.0, 0.0))
            spent = (wall + now[0] - self._mark[0], cpu + now[1] - self._mark[1])
            self._now["phases"][self._inside[-1]] = spent
        self._mark = now

    def as_json(self) -> dict[str, Any]:
        """All measurements as JSON values."""
        return {
            **self.about,
            "iterations": self.iterations,
            "floor_mib": self.floor,
            "peak_mib": self.peak,
            "start_seconds": self.start,
        }


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds of this process, over all threads."""
    return time.perf_counter(), time.process_time()


def age() -> float:
    """Seconds since the start of this process."""
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


def resident() -> float:
    """Resident MiB of this process now."""
    return _status("VmRSS")


def peak() -> float:
    """Peak resident MiB of this process."""
    return _status("VmHWM")


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / MIB
