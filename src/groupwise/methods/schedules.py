"""Constants that change over a run. No part knows time: `at` writes the numbers in, once an iteration."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

SOCKET = "Schedule"
__all__ = ["Ramp", "Schedule"]


@runtime_checkable
class Schedule(Protocol):
    """A number for an iteration, counted from 0."""

    def __call__(self, iteration: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Ramp:
    """From `start` to `end` in a straight line over the first `over` iterations, then `end`.

    >>> [Ramp(2.0, -2.0, 500)(i) for i in (0, 125, 500, 900)]
    [2.0, 1.0, -2.0, -2.0]
    """

    start: float
    end: float
    over: int

    def __call__(self, iteration: int) -> float:
        return self.start + (self.end - self.start) * min(iteration / max(self.over, 1), 1.0)
