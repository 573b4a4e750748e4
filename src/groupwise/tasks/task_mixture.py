"""A mixture of tasks: each has a share of the prompts, and its own verifier."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import floor, isfinite

from groupwise.core import Usage
from groupwise.data import (
    Prompt,
    Sample,
    Task,
    TaskWithProblemList,
    Verdict,
    Verifier,
    contents_of,
    data_stats,
    joined_contents,
)
from groupwise.tasks.rows_task import refuse_overlap
from groupwise.tasks.source_stats import SourceStats

__all__ = ["MixtureVerifier", "TaskMixture"]


@dataclass(frozen=True, slots=True)
class TaskMixture:
    """Several tasks as one; each task's share of the prompts is proportional to its weight.

    A prompt's id begins with the number of its task, from 1. An epoch is the shortest that contains every problem. The
    task with the smallest weight for its size has each problem once. Problems of other tasks repeat; within a task,
    counts differ by one at most. This depends on sizes and weights alone: order and resume belong to the curriculum.
    The held-out problems are those of `evaluated_tasks`, or else of all tasks, taken in turn. `BadData` if a problem is
    both a training problem and held out.
    """

    tasks: tuple[Task, ...]
    task_weights: tuple[float, ...]
    evaluated_tasks: tuple[Task, ...] = ()
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)
    cumulative_epoch_counts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not all(isfinite(w) and w > 0 for w in self.task_weights):
            fix = "give numbers such as 0.5 or 2"
            raise Usage(
                "every task of a mixture needs a weight above 0", evidence=f"{list(self.task_weights)}", fix=fix
            )
        pairs = list(zip([len(t) for t in self.tasks], self.task_weights, strict=True))
        scale = max((n / w for n, w in pairs), default=0.0)
        slots = [max(n, floor(w * scale + 0.5)) if n else 0 for n, w in pairs]
        first = len(self.tasks) if self.evaluated_tasks else 0
        held_out = [
            [_tagged(i, p) for p in t.held_out] for i, t in enumerate(self.evaluated_tasks or self.tasks, start=first)
        ]
        object.__setattr__(self, "cumulative_epoch_counts", tuple(accumulate(slots)))
        object.__setattr__(self, "held_out", tuple(_round_robin(held_out)))
        refuse_overlap(self.training, self.held_out)

    @property
    def parts(self) -> tuple[Task, ...]:
        """The tasks to train on, then those to evaluate on: the order of the verifiers in `Each`."""
        return (*self.tasks, *self.evaluated_tasks)

    @property
    def shares(self) -> tuple[float, ...]:
        """Each task's share of the prompts of an epoch."""
        return tuple((end - begin) / len(self) for begin, end in pairwise((0, *self.cumulative_epoch_counts)))

    @property
    def training(self) -> tuple[Prompt, ...]:
        """The training problems of all tasks that list their problems, each once."""
        listed = [(i, task) for i, task in enumerate(self.tasks) if isinstance(task, TaskWithProblemList)]
        return tuple(_tagged(i, prompt) for i, task in listed for prompt in task.training)

    @property
    def source_stats(self) -> tuple[SourceStats, ...]:
        """The statistics of all sources of rows."""
        return tuple(s for t in self.parts for s in data_stats(t))

    def __len__(self) -> int:
        return self.cumulative_epoch_counts[-1]

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no problem {index}: the mixture has {len(self)} training problems")
        i = next(i for i, end in enumerate(self.cumulative_epoch_counts) if index < end)
        begin = self.cumulative_epoch_counts[i - 1] if i else 0
        return _tagged(i, self.tasks[i][(index - begin) % len(self.tasks[i])])


@dataclass(frozen=True)
class MixtureVerifier(Verifier):
    """The verifier of a mixture: one verifier per task, in the order of `TaskMixture.parts`."""

    verifiers: tuple[Verifier, ...]

    def __post_init__(self) -> None:
        of_all = {
            "contents": joined_contents(map(contents_of, self.verifiers)),
            "has_own_deadline": any(verifier.has_own_deadline for verifier in self.verifiers),
            "notices": list(dict.fromkeys(line for verifier in self.verifiers for line in verifier.notices)),
            "packages": sorted({name for verifier in self.verifiers for name in verifier.packages}),
        }
        vars(self).update(of_all)

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return await self.verifiers[task_index(prompt)](prompt, sample)

    def by_group(self, prompt: Prompt, /) -> bool:
        """Whether the verifier of the prompt's task grades all samples of a group in one call."""
        return self.verifiers[task_index(prompt)].by_group(prompt)

    async def grade_group(self, prompt: Prompt, samples: Sequence[Sample], /) -> Sequence[Verdict]:
        """The verdicts of the task's verifier on the samples of a group."""
        return await self.verifiers[task_index(prompt)].grade_group(prompt, samples)


def _tagged(i: int, prompt: Prompt) -> Prompt:
    """A copy of the prompt whose id starts with the number of its task in the mixture, from 1."""
    return replace(prompt, id=f"{i + 1}:{prompt.id}")


def task_index(prompt: Prompt) -> int:
    """The index, from 0, of the mixture's task that a prompt comes from."""
    return int(prompt.id.partition(":")[0]) - 1


def _round_robin(lists: Sequence[Iterable[Prompt]]) -> Iterator[Prompt]:
    """One prompt of each list in turn, until all lists end."""
    iterators = [iter(prompts) for prompts in lists]
    while iterators:
        for iterator in list(iterators):
            if (prompt := next(iterator, None)) is None:
                iterators.remove(iterator)
            else:
                yield prompt
