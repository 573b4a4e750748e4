"""Reads optional members of verifiers and tasks, such as notices, with defaults for those that lack them."""

from collections.abc import Sequence
from typing import Any, TypeGuard

from groupwise.data.sample import Prompt
from groupwise.data.sockets import (
    ChecksProblems,
    Closable,
    EngineKind,
    GradesGroups,
    HasNotices,
    HasPackages,
    KeepsTime,
    ListsProblems,
    Task,
    Verifier,
)

__all__ = [
    "all_problems",
    "close_verifier",
    "data_stats",
    "gate_problems",
    "grades_group",
    "keeps_time",
    "notices_of",
    "packages_of",
]


def keeps_time(verifier: Verifier) -> bool:
    """Whether the verifier limits the time of each call itself. Default: no."""
    return isinstance(verifier, KeepsTime) and verifier.keeps_time


def notices_of(part: Verifier | EngineKind) -> Sequence[str]:
    """Lines that a command prints before it uses a verifier or an engine, such as a judge's host. Default: none."""
    return part.notices if isinstance(part, HasNotices) else ()


def packages_of(verifier: Verifier) -> Sequence[str]:
    """The installed packages whose versions may change the verifier's verdicts. Default: none."""
    return verifier.packages if isinstance(verifier, HasPackages) else ()


def grades_group(verifier: Verifier, prompt: Prompt) -> TypeGuard[GradesGroups]:
    """Whether the verifier grades all samples of this prompt's groups in one call. Default: no."""
    return isinstance(verifier, GradesGroups) and verifier.by_group(prompt)


def gate_problems(verifier: Verifier, prompts: Sequence[Prompt]) -> None:
    """Let the verifier check the problems before the run, if it does. `BadData` for problems that it cannot use."""
    if isinstance(verifier, ChecksProblems):
        verifier.gate(prompts)


def close_verifier(verifier: Verifier) -> None:
    """End the verifier's workers, if it has any."""
    if isinstance(verifier, Closable):
        verifier.close()


def all_problems(task: Task) -> Sequence[Prompt]:
    """The held-out problems, and the training problems of a task that lists them."""
    return (*task.held_out, *task.training) if isinstance(task, ListsProblems) else task.held_out


def data_stats(task: Task) -> Sequence[Any]:
    """The statistics of the task's sources of rows; none for a task that does not list its problems."""
    return task.stats if isinstance(task, ListsProblems) else ()
