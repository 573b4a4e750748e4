"""Wall and CPU seconds of iterations and their phases, and memory, read the same way on both sides."""

import os
import platform
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.beside.turns import wait

MIB = 1 << 20


class Watch:
    """Iterations as they pass, each with wall and CPU seconds, in all and by phase. A phase inside another counts once,
    under its own name. Before each of the iterations `turns` it says what it saw and waits. `about` is said with it."""

    def __init__(self, turns: Container[int] = (), about: Mapping[str, Any] | None = None) -> None:
        self.turns, self.about = turns, about or {}
        self.iterations: list[dict[str, Any]] = []
        self.floor = resident()
        """MiB held once everything is imported, before there is a model."""
        self.start = 0.0
        """Seconds from the start of the process to its first iteration."""
        self.peak = 0.0
        """MiB held at most up to the end of the last iteration: saving what came out is apart, as loading is."""
        self._now: dict[str, Any] = {}
        self._inside: list[str] = []
        self._mark = self._began = (0.0, 0.0)

    def begin(self) -> None:
        """An iteration begins; one that is under way has ended."""
        self.end()
        if len(self.iterations) in self.turns:
            wait(self.told())
        self.start = self.start or age()
        self._now = {"phases": {}}
        self._mark = self._began = clocks()

    def end(self) -> None:
        """The iteration is over."""
        if self._now:
            seconds, cpu = clocks()
            self._now |= {"seconds": seconds - self._began[0], "cpu": cpu - self._began[1]}
            self.iterations.append(self._now)
            self._now, self.peak = {}, peak()

    def note(self, **numbers: float) -> None:
        """Numbers of the iteration under way."""
        self._now |= numbers

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time inside counts for `name`, and not for the phase around it."""
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

    def told(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return {
            **self.about,
            "iterations": self.iterations,
            "floor_mib": self.floor,
            "peak_mib": self.peak,
            "start_seconds": self.start,
        }


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds of this process, all of its threads."""
    return time.perf_counter(), time.process_time()


def age() -> float:
    """Seconds since this process began."""
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


def resident() -> float:
    """MiB that this process holds now."""
    return _status("VmRSS")


def peak() -> float:
    """MiB that this process ever held at once."""
    return _status("VmHWM")


def versions(*packages: str) -> dict[str, str]:
    """What ran."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def _status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / MIB
