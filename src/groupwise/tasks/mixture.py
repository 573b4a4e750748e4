"""Several tasks as one: each has its share of the draws, and its own verifier."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import floor, isfinite

from groupwise.data import Prompt, Sample, Task, Usage, Verdict, Verifier
from groupwise.tasks.problems import Problems, refuse_overlap
from groupwise.tasks.source_stats import SourceStats

__all__ = ["Each", "Mixture"]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Tasks whose shares of an epoch are as their weights; `given["of"]` of a prompt says whose it is.

    An epoch is as short as it can be with every problem in it: the task whose weight is smallest for its size has each
    problem once, those of the others come round again, of one task no two more than once apart. All this depends on
    sizes and weights alone, so order and resume are the curriculum's. Held out is what `held` holds out where it is
    given, else what all tasks do, one of each in turn. `BadData` where a problem is on both sides.
    """

    tasks: tuple[Task, ...]
    weights: tuple[float, ...]
    held: tuple[Task, ...] = ()
    held_out: tuple[Prompt, ...] = field(init=False, repr=False, compare=False)
    ends: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not all(isfinite(w) and w > 0 for w in self.weights):
            fix = "give numbers such as 0.5 or 2"
            raise Usage("every task of a mixture needs a weight above 0", evidence=f"{list(self.weights)}", fix=fix)
        pairs = list(zip([len(t) for t in self.tasks], self.weights, strict=True))
        round_ = max((n / w for n, w in pairs), default=0.0)
        slots = [max(n, floor(w * round_ + 0.5)) if n else 0 for n, w in pairs]
        first = len(self.tasks) if self.held else 0
        held = [[_of(i, p) for p in t.held_out] for i, t in enumerate(self.held or self.tasks, start=first)]
        object.__setattr__(self, "ends", tuple(accumulate(slots)))
        object.__setattr__(self, "held_out", tuple(_in_turn(held)))
        refuse_overlap(self.training, self.held_out)

    @property
    def parts(self) -> tuple[Task, ...]:
        """All its tasks, as the verifiers of `Each` count them."""
        return (*self.tasks, *self.held)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of an epoch's draws, each task's."""
        return tuple((end - begin) / len(self) for begin, end in pairwise((0, *self.ends)))

    @property
    def training(self) -> tuple[Prompt, ...]:
        """The problems to train on of those tasks that list theirs, each once."""
        return tuple(_of(i, p) for i, t in enumerate(self.tasks) if isinstance(t, Problems) for p in t.training)

    @property
    def facts(self) -> tuple[SourceStats, ...]:
        return tuple(f for t in self.parts if isinstance(t, Problems) for f in t.facts)

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"problem {index} of {len(self)}")
        i = next(i for i, end in enumerate(self.ends) if index < end)
        begin = self.ends[i - 1] if i else 0
        return _of(i, self.tasks[i][(index - begin) % len(self.tasks[i])])


@dataclass(frozen=True, slots=True)
class Each:
    """A verifier for each task of a mixture, those of what is held out behind them."""

    verifiers: tuple[Verifier, ...]

    @property
    def keeps_time(self) -> bool:
        """Whether one of them does: an answer's deadline is then its own."""
        return any(getattr(v, "keeps_time", False) for v in self.verifiers)

    @property
    def notices(self) -> list[str]:
        """What a user reads about them at the start, each line once."""
        return list(dict.fromkeys(line for v in self.verifiers for line in getattr(v, "notices", ())))

    async def __call__(self, prompt: Prompt, sample: Sample) -> Verdict:
        return await self.verifiers[prompt.given["of"]](prompt, sample)


def _of(i: int, prompt: Prompt) -> Prompt:
    return replace(prompt, id=f"{i + 1}:{prompt.id}", given={**prompt.given, "of": i})


def _in_turn(lists: Sequence[Iterable[Prompt]]) -> Iterator[Prompt]:
    """One of each, and again, until all are through."""
    open_ = [iter(some) for some in lists]
    while open_:
        for some in list(open_):
            if (one := next(some, None)) is None:
                open_.remove(some)
            else:
                yield one
