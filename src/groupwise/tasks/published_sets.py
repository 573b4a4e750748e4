"""Published data sets, the task `PublishedSet`: where they are, their columns, and default template."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.core import check_types
from groupwise.data import Ids, Task, TaskSettings
from groupwise.tasks.data_sets import HUB
from groupwise.tasks.row_columns import RowColumns, after_hashes, as_one_answer, countdown, last_boxed
from groupwise.tasks.rows_task import RowsTask, read_problems

__all__ = ["PublishedSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataSource:
    """A published data set. Without a `training` split it is only evaluated; without `held_out`, a tenth is held out.

    The first of `column_layouts` that fits the first row reads all rows: copies of one set differ in their columns.
    """

    hub_name: str
    column_layouts: tuple[RowColumns, ...]
    default_template: str = "no"
    training_split: str = "train"
    held_out_split: str = ""

    def read(self, name: str, source: str, encode: Callable[[Any], Ids]) -> RowsTask:
        """The problems of the data set, from the hub or from a file, a directory or a data set on disk."""
        source = source or HUB + self.hub_name
        has_splits = not (Path(source).is_file() or "@" in source)
        if not self.training_split:
            held_out, stats = read_problems(source, encode, self.column_layouts, self.held_out_split, name)
            return RowsTask(tuple(held_out), (), (stats,)).entirely_held_out
        training = read_problems(source, encode, self.column_layouts, self.training_split, name)
        if not has_splits or not self.held_out_split:
            return RowsTask.split(*training)
        held_out = read_problems(source, encode, self.column_layouts, self.held_out_split, f"{name}-held-out")
        return RowsTask.from_two(training, held_out)


MATHEMATICS = (
    RowColumns("problem", "answer", as_one_answer),
    RowColumns("question", "answer", as_one_answer),
    RowColumns("Problem", "Answer", as_one_answer),
    RowColumns("question", "final_answer", as_one_answer),
    RowColumns("prompt", "reward_model.ground_truth", as_one_answer),
    RowColumns("problem", "solution", last_boxed, answer_is_solution=True),
    RowColumns("question", "solution", last_boxed, answer_is_solution=True),
)
"""The column names of published sets of mathematics."""


def _evaluation(hub: str, split: str) -> PublishedDataSource:
    return PublishedDataSource(
        hub_name=hub, column_layouts=MATHEMATICS, default_template="qwen_math", training_split="", held_out_split=split
    )


PRESETS = {
    "gsm8k": PublishedDataSource(
        hub_name="openai/gsm8k:main",
        column_layouts=(RowColumns("question", "answer", after_hashes, answer_is_solution=True),),
        held_out_split="test",
    ),
    "math": PublishedDataSource(
        hub_name="DigitalLearningGmbH/MATH-lighteval",
        column_layouts=MATHEMATICS,
        default_template="qwen_math",
        held_out_split="test",
    ),
    "dapo-math-17k": PublishedDataSource(
        hub_name="BytedTsinghua-SIA/DAPO-Math-17k",
        column_layouts=(
            RowColumns("prompt", "reward_model.ground_truth", as_one_answer),
            RowColumns("prompt", "solution", as_one_answer),
        ),
        default_template="chat",
    ),
    "countdown": PublishedDataSource(
        hub_name="Jiayi-Pan/Countdown-Tasks-3to4",
        column_layouts=(RowColumns("nums", "target", countdown), RowColumns("numbers", "target", countdown)),
        default_template="r1",
    ),
    "aime24": _evaluation("HuggingFaceH4/aime_2024", "train"),
    "aime25": _evaluation("math-ai/aime25", "test"),
    "amc": _evaluation("AI-MO/aimo-validation-amc", "train"),
    "math500": _evaluation("HuggingFaceH4/MATH-500", "test"),
    "minerva": _evaluation("math-ai/minervamath", "test"),
    "olympiadbench": _evaluation("Hothan/OlympiadBench:OE_TO_maths_en_COMP", "train"),
}


@dataclass(frozen=True, slots=True)
class PublishedSet(TaskSettings):
    """A published data set by name, such as `gsm8k`: from the hub, or from `source`, such as a file or a directory."""

    name: str
    source: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if self.name not in PRESETS:
            raise ValueError(f"no published set is called {self.name!r}\nthe names are {', '.join(PRESETS)}")

    @property
    def label(self) -> str:
        return f"{self.name}:{self.source}" if self.source else self.name

    @property
    def template(self) -> str:
        return PRESETS[self.name].default_template

    def build(self, encode: Callable[[Any], Ids], /) -> Task:
        """The problems of the set."""
        return PRESETS[self.name].read(self.name, self.source, encode)
