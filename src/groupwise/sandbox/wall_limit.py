"""The limit of wall time of an execution: it counts sleep, and no wait for a busy processor."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MOST = 10
"""An execution ends after this many times its limit of wall time, also if it never slept."""
LOOK = 1.0
"""Seconds between two readings of an execution's threads."""
SOONEST = 0.01
"""The least seconds until the next reading."""

Threads = Mapping[int, float]
"""Seconds that each thread has computed or waited for a processor, since its start, by the thread's id."""


@dataclass(slots=True)
class WallTimeLimit:
    """The limit of an execution's idle wall time: seconds in which no thread computed or waited for a processor.

    After `max_idle_seconds` of idle time the execution ends by its own fault (`wall`); after `MOST`
    times `max_idle_seconds` by the machine's (`busy`). In each interval the thread that was active longest
    counts. A sum over threads would let an answer save up time with many waiting threads; no thread is active longer
    than the interval. An answer that keeps a thread active computes, so the limit of CPU time ends it.

    `thread_seconds_reader` gives the threads' times; `last_check_time_seconds` is the time in seconds. The kernel adds
    a wait to a thread's time only at the wait's end, so one interval can hold less active time than it had, and a later
    one more. A gap between two looks in which this process did not run counts for no longer than the planned interval.
    """

    max_idle_seconds: float
    thread_seconds_reader: Callable[[], Threads]
    last_check_time_seconds: float
    accumulated_idle_seconds: float = 0.0
    next_check_time_seconds: float = field(init=False)
    _start: float = field(init=False)
    _times: Threads = field(init=False)

    def __post_init__(self) -> None:
        self._start, self._times = self.last_check_time_seconds, {}
        self.next_check_time_seconds = self.last_check_time_seconds + min(LOOK, self.max_idle_seconds)

    def look(self, now: float) -> Literal["", "wall", "busy"]:
        """Count the time since the last look. The limit that has been reached; empty if none.

        The next is `next_check_time_seconds`.
        """
        times = self.thread_seconds_reader()
        active = max((seconds - self._times.get(i, 0.0) for i, seconds in times.items()), default=0.0)
        last, planned = self.last_check_time_seconds, self.next_check_time_seconds
        idle = min(now - last - active, planned - last)
        self.accumulated_idle_seconds = max(self.accumulated_idle_seconds + idle, 0.0)
        self._times, self.last_check_time_seconds = times, now
        left = min(
            LOOK,
            self.max_idle_seconds - self.accumulated_idle_seconds,
            self._start + MOST * self.max_idle_seconds - now,
        )
        self.next_check_time_seconds = now + max(left, SOONEST)
        if self.accumulated_idle_seconds >= self.max_idle_seconds:
            return "wall"
        return "busy" if now - self._start >= MOST * self.max_idle_seconds else ""


def thread_times(process: int) -> Threads:
    """The times of all threads of a process and its descendants, from Linux's `schedstat`.

    Zero where the kernel keeps no such times, and empty where `/proc` hides the process: then all time counts as idle.
    """
    times: dict[int, float] = {}
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # it has ended
                computed, waited, _ = (thread / "schedstat").read_text().split()
                times[int(thread.name)] = (int(computed) + int(waited)) * 1e-9
                for child in (thread / "children").read_text().split():
                    times |= thread_times(int(child))
    return times


def process_of(pidfd: int) -> int:
    """The id of a process, as this process sees it, from an open file that refers to it. 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Pid":
                return max(int(value), 0)
    return 0
