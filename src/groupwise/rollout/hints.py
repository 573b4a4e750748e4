"""Hints for hard problems: from a column of the data, or written by the policy."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from groupwise.data import Draw, Sample, Sampler
from groupwise.rollout.attempts import context_of
from groupwise.rollout.columns import text_of, texts_of
from groupwise.rollout.together import together
from groupwise.rollout.wording import AUTO, UNWORDED, Forms, check_wording

__all__ = ["Hints", "RowHints", "SelfHints"]

ASKED = Forms(
    "{solution};{problem}",
    "You are a tutoring assistant that generates progressive hints to help students solve difficult problems without "
    "revealing the solution directly.\n\n"
    "GUIDELINES:\n- Never reveal the final answer\n"
    "- Hints should inspire problem-solving, not just provide steps to copy\n\n"
    "Question: \n{problem}\n\nSolution:\n{solution}\n\nWrite one hint for this question, and nothing else.",
    "BaohaoLiao/SAGE, recipe/hint/prompt.py, 9caab74, shortened: it asks for three hints as JSON",
)
"""The prompt for a hint."""


@runtime_checkable
class Hints(Protocol):
    """Returns the hints for a problem, the weakest first, and the samples in which the policy wrote them, if any."""

    __slots__ = ()

    @abstractmethod
    async def __call__(self, draw: Draw, sampler: Sampler) -> tuple[list[str], list[Sample]]: ...


@dataclass(frozen=True, slots=True)
class RowHints(Hints):
    """Takes the hints from a column of the problem's data row: a text, or a list of texts, the weakest first.

    A row without the column has no hints; at least one row must have it.
    """

    columns_as: ClassVar[str] = "texts"
    skips_rows: ClassVar[bool] = True

    column: str = "hints"

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> tuple[list[str], list[Sample]]:
        return texts_of(draw, self.column, self), []


@dataclass(frozen=True, slots=True)
class SelfHints(Hints):
    """Hints that the policy writes from the solution in the data row, each with a higher length limit. SAGE.

    One answer per level, of at most `limit` tokens times the level; `auto` is 8, or 64 in prose. Without a solution
    there are no hints. arXiv:2602.03143.
    """

    columns_as: ClassVar[str] = "text"
    skips_rows: ClassVar[bool] = True
    forms: ClassVar[dict[str, Forms]] = {"limit": Forms(8, 64), "words": ASKED}

    levels: int = 3
    limit: int | Literal["auto"] = AUTO
    column: str = "solution"
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "solution"))

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> tuple[list[str], list[Sample]]:
        if not (solution := text_of(draw, self.column, self)):
            return [], []
        assert self.limit != AUTO, UNWORDED
        context = context_of(sampler, self.words, {"problem": draw.prompt.text, "solution": solution})
        if not context:
            return [], []
        starts = sampler.start(context, self.levels, role="hint")
        answers = await together(sampler.extend(s, limit=self.limit * (i + 1)) for i, s in enumerate(starts))
        return [s.text for s in answers], list(answers)
