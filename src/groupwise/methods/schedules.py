"""Schedules: constants that change over a run. `at` writes the current numbers into the method, once per iteration."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

SOCKET = "Schedule"
__all__ = ["Ramp", "Schedule"]


@runtime_checkable
class Schedule(Protocol):
    """The value of a constant at an iteration, counted from 0."""

    def __call__(self, iteration: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Ramp:
    """Linear from `start` to `end` over the first `over` iterations, then `end`.

    >>> [Ramp(2.0, -2.0, 500)(i) for i in (0, 125, 500, 900)]
    [2.0, 1.0, -2.0, -2.0]
    """

    start: float
    end: float
    over: int

    def __call__(self, iteration: int) -> float:
        return self.start + (self.end - self.start) * min(iteration / max(self.over, 1), 1.0)
