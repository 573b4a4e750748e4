"""Schedules: constants of a method that change over a run, such as a coefficient that decays."""

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from groupwise.methods.schedule_input import ScheduleInput

__all__ = [
    "CurvedRamp",
    "CyclicValues",
    "DelayedStart",
    "ExponentialDecay",
    "InverseRemaining",
    "LinearRamp",
    "PiecewiseConstant",
    "Schedule",
    "Staircase",
    "StateValue",
]

SPREAD = 100
"""The number of iterations, evenly spread over a run, at which schedules are tried before it."""
KEYS = re.compile(r"""\"([^\"]*)\"|'([^']*)'|([^.]+)""")
"""The keys of a dotted path. A key that contains dots is quoted, as in TOML."""


@runtime_checkable
class Schedule(Protocol):
    """Returns the value of a constant at an iteration."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, now: ScheduleInput, /) -> float: ...


@dataclass(frozen=True, slots=True)
class LinearRamp(Schedule):
    """Linear from `start_value` to `end_value` over the first `over_iterations` iterations; over the run if they are 0.

    >>> [LinearRamp(2.0, -2.0, 500)(ScheduleInput(i)) for i in (0, 125, 500, 900)]
    [2.0, 1.0, -2.0, -2.0]
    >>> LinearRamp(0.0, 1.0)(ScheduleInput(5, total_iterations=20))
    0.25
    """

    start_value: float
    end_value: float
    over_iterations: int = 0

    def __call__(self, now: ScheduleInput) -> float:
        x = min(now.iteration / max(self.over_iterations or now.total_iterations, 1), 1.0)
        return self.start_value + (self.end_value - self.start_value) * x


@dataclass(frozen=True, slots=True)
class CurvedRamp(Schedule):
    """From `start_value` to `end_value` over `over_iterations` iterations along a curve; HölderPO, arXiv:2605.12058.

    With `over_iterations = 0` it spans the whole run. A power curve is `start_value + (end_value - start_value)
    x^curve_power`.

    >>> [round(CurvedRamp(2.0, -2.0, 500)(ScheduleInput(i)), 3) for i in (0, 125, 250, 500)]
    [2.0, 1.414, 0.0, -2.0]
    """

    start_value: float
    end_value: float
    over_iterations: int = 0
    curve_shape: Literal["cosine", "cubic", "power"] = "cosine"
    curve_power: float = 2.0

    def __call__(self, now: ScheduleInput) -> float:
        x = min(now.iteration / max(self.over_iterations or now.total_iterations, 1), 1.0)
        middle, half = (self.start_value + self.end_value) / 2, (self.start_value - self.end_value) / 2
        match self.curve_shape:
            case "cosine":
                return middle + half * math.cos(math.pi * x)
            case "cubic":
                return middle - half * (2 * x - 1) ** 3
            case "power":
                return self.start_value + (self.end_value - self.start_value) * x**self.curve_power


@dataclass(frozen=True, slots=True)
class ExponentialDecay(Schedule):
    """`start_value exp(-i / time_constant_iterations)` at iteration i: exponential decay, as in Trust-GRPO.

    >>> ExponentialDecay(1.0, 10.0)(ScheduleInput(0))
    1.0
    """

    start_value: float
    time_constant_iterations: float

    def __call__(self, now: ScheduleInput) -> float:
        return self.start_value * math.exp(-now.iteration / self.time_constant_iterations)


@dataclass(frozen=True, slots=True)
class InverseRemaining(Schedule):
    """`start_value / (1 - i / iterations)` at iteration i of the run: a weight that grows. MDPO, arXiv:2005.09814.

    >>> [InverseRemaining(0.5)(ScheduleInput(i, total_iterations=4)) for i in range(4)]
    [0.5, 0.6666666666666666, 1.0, 2.0]
    """

    start_value: float = 1.0

    def __call__(self, now: ScheduleInput) -> float:
        return (
            self.start_value / (1 - now.iteration / now.total_iterations) if now.total_iterations else self.start_value
        )


@dataclass(frozen=True, slots=True)
class DelayedStart(Schedule):
    """0 for the first `delay_iterations`, then 1: for a component that starts later, such as hints after a warm-up.

    >>> [DelayedStart(2)(ScheduleInput(i)) for i in range(4)]
    [0.0, 0.0, 1.0, 1.0]
    """

    delay_iterations: int

    def __call__(self, now: ScheduleInput) -> float:
        return float(now.iteration >= self.delay_iterations)


@dataclass(frozen=True, slots=True)
class Staircase(Schedule):
    """`start_value * factor^k` after k blocks of `iterations_per_stair` iterations, but at least `min_value`.

    >>> [round(Staircase(256.0, 0.7, 10)(ScheduleInput(i)), 1) for i in (0, 9, 10, 20)]
    [256.0, 256.0, 179.2, 125.4]
    """

    start_value: float
    factor: float
    iterations_per_stair: int
    min_value: float = 1.0

    def __call__(self, now: ScheduleInput) -> float:
        return max(self.start_value * self.factor ** (now.iteration // self.iterations_per_stair), self.min_value)


@dataclass(frozen=True, slots=True)
class PiecewiseConstant(Schedule):
    """A step function: each point is a pair of an iteration and the value from there on.

    >>> [PiecewiseConstant(((0, 1.0), (2, 0.5)))(ScheduleInput(i)) for i in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """

    iteration_value_pairs: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        iterations = [iteration for iteration, _ in self.iteration_value_pairs]
        if iterations[:1] != [0] or iterations != sorted(set(iterations)):
            raise ValueError(f"{self}: needs iteration_value_pairs with increasing iterations, the first of them 0")

    def __call__(self, now: ScheduleInput) -> float:
        return [value for iteration, value in self.iteration_value_pairs if iteration <= now.iteration][-1]


@dataclass(frozen=True, slots=True)
class CyclicValues(Schedule):
    """The `values` in turn, one an iteration, then again from the first. For components that are trained by turns.

    >>> [CyclicValues((0.0, 0.0, 1.0))(ScheduleInput(i)) for i in range(4)]
    [0.0, 0.0, 1.0, 0.0]
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("CyclicValues has no values: give one or more numbers")

    def __call__(self, now: ScheduleInput) -> float:
        return self.values[now.iteration % len(self.values)]


@dataclass(frozen=True, slots=True)
class StateValue(Schedule):
    """A schedule that returns the current value of a state of the method, such as an adaptive KL coefficient.

    >>> StateValue("kl")(ScheduleInput(3, method_states={"kl": 0.05}))
    0.05
    """

    state_name: str

    def __call__(self, now: ScheduleInput) -> float:
        return float(now.method_states[self.state_name])


def with_value(component: Any, path: str, value: float) -> Any:
    """A copy of a component with a value at a dotted path of fields, indices and names of pairs.

    A whole number is an int unless the present value is a float. ValueError if a dataclass on the path refuses it.

    >>> with_value((("kl", LinearRamp(2.0, 1.0)),), "kl.over_iterations", 5.0)
    (('kl', LinearRamp(start_value=2.0, end_value=1.0, over_iterations=5)),)
    """
    return _with_value(component, ["".join(key) for key in KEYS.findall(path)], value)


def _with_value(item: Any, keys: Sequence[str], value: float) -> Any:
    if not keys:
        whole = not isinstance(item, float) and float(value).is_integer()
        return int(value) if whole else float(value)
    key, rest = keys[0], keys[1:]
    if not isinstance(item, tuple):
        return replace(item, **{key: _with_value(getattr(item, key), rest, value)})
    if all(isinstance(pair, tuple) and isinstance(pair[0], str) for pair in item):
        pairs = dict(item)
        return tuple({**pairs, key: _with_value(pairs.get(key), rest, value)}.items())
    i = int(key)
    return (*item[:i], _with_value(item[i], rest, value), *item[i + 1 :])


def trial_iterations(schedules: Sequence[Schedule], iterations: int, states: Mapping[str, Any]) -> list[int]:
    """The iterations at which schedules are tried before a run: about 100 instead of all of a long run.

    They are evenly spread from the first to the last one. Added are those of each schedule's smallest and largest
    number, and the first one of each mix of whole and fractional numbers.

    >>> trial_iterations([LinearRamp(4.0, 8.0, 10)], 1000, {})[:4]
    [0, 1, 10, 20]
    """
    last = max(iterations, 1) - 1
    rows = [[float(schedule(ScheduleInput(i, iterations, states))) for schedule in schedules] for i in range(last + 1)]
    tried = {i * last // (SPREAD - 1) for i in range(SPREAD)}
    tried |= {choose(range(last + 1), key=x.__getitem__) for x in zip(*rows) for choose in (min, max)}
    tried |= {*{tuple(map(float.is_integer, rows[i])): i for i in range(last, -1, -1)}.values()}
    return sorted(tried)
