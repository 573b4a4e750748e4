"""Tasks of the package that generate their problems: the same ones in every run."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from groupwise.data import Ids, Prompt, Task, TaskSettings

Problem = TypeVar("Problem")


class GeneratedTaskSettings(TaskSettings):
    """The kind of a task that generates its problems, which may be of any type.

    `problems` returns those to train on and the held-out ones; `prompt` makes the prompt of one.
    """

    __slots__ = ()

    @abstractmethod
    def problems(self) -> tuple[Sequence[Any], Sequence[Any]]: ...

    @abstractmethod
    def prompt(self, problem: Any, encode: Callable[[Any], Ids], /) -> Prompt: ...

    def build(self, encode: Callable[[Any], Ids], /) -> Task:
        """The task of this kind."""
        return GeneratedTask(self, encode)


@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """The task of a `GeneratedTaskSettings`. A training prompt is made when it is drawn."""

    task_settings: GeneratedTaskSettings
    encode_prompt: Callable[[Any], Ids]
    problems: Sequence[Any] = field(init=False, repr=False, compare=False)
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        training, held_out = self.task_settings.problems()
        object.__setattr__(self, "problems", training)
        object.__setattr__(
            self, "held_out", tuple(self.task_settings.prompt(problem, self.encode_prompt) for problem in held_out)
        )

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no problem {index}: the task has {len(self)} training problems")
        return self.task_settings.prompt(self.problems[index], self.encode_prompt)


@dataclass(frozen=True, slots=True)
class LazySequence(Sequence[Problem], Generic[Problem]):
    """A sequence whose elements are computed from their index, so that no list of them exists."""

    length: int
    compute_element: Callable[[int], Problem]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.compute_element(index)
