"""`Anchored`: a sampling strategy that adds the data's solution to groups with too few correct answers."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import Draw, Rollout, Sampler, Strategy
from groupwise.rollout.attempts import attempts, is_correct
from groupwise.rollout.columns import text_of

__all__ = ["Anchored"]


@dataclass(frozen=True, slots=True)
class Anchored(Strategy):
    """Samples answers. If at most the fraction `at_most` is correct, the solution in the data row joins their group.

    The solution is the column `column` of the row; it is graded as an answer is, and trained with the origin WRITTEN.
    A group whose row has no solution stays as it is. DaGRPO, arXiv:2512.06337; that one solution joins groups without
    a correct answer is our reading.
    """

    columns_as: ClassVar[str] = "text"
    skips_rows: ClassVar[bool] = True

    column: str = "solution"
    at_most: float = 0.0

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of the data rows that it reads."""
        return (self.column,)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        solution = text_of(draw, self.column, self)
        answers = await attempts(sampler, draw.prompt.context, draw.n)
        if not solution or sum(map(is_correct, answers)) > self.at_most * draw.n:
            return Rollout(draw, tuple(answers))
        (empty,) = sampler.start(draw.prompt.context)
        (anchor,) = await sampler.verify([sampler.write(empty, solution)])
        return Rollout(draw, (*answers, anchor))
