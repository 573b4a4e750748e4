"""Hints for hard problems: from a column of the data, or written by the policy."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from groupwise.data import Draw, Sample, Sampler
from groupwise.rollout.row_columns import texts_of

__all__ = ["HintSource", "RowHints"]


@runtime_checkable
class HintSource(Protocol):
    """Returns the hints for a problem, the weakest first, and the samples in which the policy wrote them, if any."""

    __slots__ = ()

    @abstractmethod
    async def __call__(self, draw: Draw, sampler: Sampler) -> tuple[list[str], list[Sample]]: ...


@dataclass(frozen=True, slots=True)
class RowHints(HintSource):
    """Takes the hints from a column of the problem's data row: a text, or a list of texts, the weakest first.

    A row without the column has no hints; at least one row must have it.
    """

    column_type: ClassVar[str] = "texts"
    column_optional: ClassVar[bool] = True

    hint_column: str = "hints"

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.hint_column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> tuple[list[str], list[Sample]]:
        return texts_of(draw, self.hint_column, self), []
