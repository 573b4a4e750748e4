"""The task `ReasoningGym`: generated problems of the package reasoning-gym."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from groupwise.core import BadData, MissingRequirement, Usage, check_types, counted
from groupwise.data import Ids, Prompt, Task, TaskSettings
from groupwise.tasks.rows_task import RowsTask, key_of
from groupwise.tasks.source_stats import ContentHash, SourceStats

__all__ = ["ReasoningGym"]

LARGEST = 2**20
"""The most problems of a generator: all are generated before the run, and stay in memory."""


@dataclass(frozen=True, slots=True)
class ReasoningGym(TaskSettings):
    """The problems of one generator of reasoning-gym, by name: each question once, a tenth of them held out.

    Equal `seed` and `max_problems` give the same problems: `max_problems` at most, fewer if some repeat. `row["entry"]`
    identifies a problem; the scorer generates it again from that.
    """

    name: str
    seed: int = 0
    max_problems: int = 4096

    def __post_init__(self) -> None:
        check_types(self)
        if self.seed < 0 or not 1 <= self.max_problems <= LARGEST:
            what = f"seed is {self.seed} and size is {self.max_problems}"
            raise ValueError(f"{what}\nuse seed >= 0 and max_problems >= 1, at most {LARGEST}")

    @property
    def label(self) -> str:
        return f"reasoning_gym:{self.name}"

    def build(self, encode: Callable[[Any], Ids], /) -> Task:
        """The generated problems."""
        entries = generator(self.name, self.seed, self.max_problems)
        prompts: list[Prompt] = []
        content, keys = ContentHash(), set()
        for index in range(self.max_problems):
            entry = entries[index]
            question, answer = str(entry["question"]), entry["answer"]
            if key_of(question) in keys:
                continue
            keys.add(key_of(question))
            content.add(question, str(answer))
            identity = {"data_set": self.name, "seed": self.seed, "size": self.max_problems, "index": index}
            row = {"answer": answer if isinstance(answer, str | int | float) else str(answer), "entry": identity}
            prompts.append(Prompt(f"{self.name}/{index + 1}", encode(question), question, row))
        stats = SourceStats(
            source=self.label, sha256=content.digest, row_count=len(prompts), training_count=0, held_out_count=0
        )
        return RowsTask.split(prompts, stats)


def generator(data_set: str, seed: int, size: int) -> Any:
    """Create the data set of a reasoning-gym generator, by name. `Usage` for an unknown name."""
    try:
        gym, known = import_module("reasoning_gym"), import_module("reasoning_gym.factory").DATASETS
    except ImportError:
        fix = "pip install 'groupwise[reasoning-gym]'"
        what = f"the task reasoning_gym:{data_set} needs the package reasoning-gym"
        raise MissingRequirement(what, evidence="it is not installed", fix=fix) from None
    if data_set not in known:
        near = get_close_matches(data_set, known, n=3, cutoff=0.4) or sorted(known)[:5]
        fix = f"take one of its {counted(len(known), 'generator')}, such as {', '.join(near)}"
        raise Usage(f"reasoning-gym has no generator called {data_set!r}", fix=fix)
    try:
        return gym.create_dataset(data_set, seed=seed, size=size)
    except Exception as error:  # a generator may raise anything
        evidence = f"{type(error).__name__}: {error}"[:300]
        raise BadData(
            f"the problem generator {data_set} cannot start",
            evidence=evidence,
            fix="take another one: --task reasoning_gym --task.name NAME",
        ) from error
