"""`ScheduleInput`: the state of a run that a schedule reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ScheduleInput"]


@dataclass(frozen=True, slots=True)
class ScheduleInput:
    """The input of a schedule: the iteration's number (from 0), the total number, and the method's states by name."""

    iteration: int
    total_iterations: int = 0
    method_states: Mapping[str, Any] = field(default_factory=dict)
