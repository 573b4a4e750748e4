"""Schedules: constants that change over a run. `at` writes the current numbers into the method, once per iteration."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from groupwise.methods.now import Now

SOCKET = "Schedule"
__all__ = ["FromMemory", "Ramp", "Schedule"]


@runtime_checkable
class Schedule(Protocol):
    """The value of a constant at an iteration."""

    def __call__(self, now: Now, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Ramp:
    """Linear from `start` to `end` over the first `over` iterations, then `end`. With `over = 0`, over the whole run.

    >>> [Ramp(2.0, -2.0, 500)(Now(i)) for i in (0, 125, 500, 900)]
    [2.0, 1.0, -2.0, -2.0]
    >>> Ramp(0.0, 1.0)(Now(5, iterations=20))
    0.25
    """

    start: float
    end: float
    over: int = 0

    def __call__(self, now: Now) -> float:
        return self.start + (self.end - self.start) * min(now.iteration / max(self.over or now.iterations, 1), 1.0)


@dataclass(frozen=True, slots=True)
class FromMemory:
    """The current value of one of the method's memories, such as the coefficient of an adaptive KL penalty.

    >>> FromMemory("kl")(Now(3, memory={"kl": 0.05}))
    0.05
    """

    memory: str

    def __call__(self, now: Now) -> float:
        return float(now.memory[self.memory])
