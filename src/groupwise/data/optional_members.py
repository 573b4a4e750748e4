"""Reads optional members of tasks and engines, with defaults for those that lack them."""

from collections.abc import Sequence
from typing import Any

from groupwise.data.base_classes import EngineSettings, Task, TaskWithProblemList
from groupwise.data.sample import Prompt

__all__ = ["all_problems", "data_stats", "notices_of", "takes_quantized_base"]


def notices_of(engine: EngineSettings) -> Sequence[str]:
    """Lines that a command prints before it uses an engine, such as the addresses of engines. Default: none."""
    return getattr(engine, "notices", ())


def takes_quantized_base(engine: EngineSettings) -> bool:
    """Whether the engine generates with a base in 4 bits under an adapter. Default: yes."""
    return getattr(engine, "takes_quantized_base", True)


def all_problems(task: Task) -> Sequence[Prompt]:
    """The held-out problems, and the training problems of a task that lists them."""
    return (*task.held_out, *task.training) if isinstance(task, TaskWithProblemList) else task.held_out


def data_stats(task: Task) -> Sequence[Any]:
    """The statistics of the task's sources of rows; none for a task that does not list its problems."""
    return task.source_stats if isinstance(task, TaskWithProblemList) else ()
