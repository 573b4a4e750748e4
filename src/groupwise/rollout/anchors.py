"""`Anchored`: a strategy that adds a written solution to groups with too few correct answers."""

from dataclasses import dataclass

from groupwise.data import Draw, Outcome, Rollout, Sampler, Usage

SOCKET = "Strategy"
__all__ = ["Anchored"]


@dataclass(frozen=True, slots=True)
class Anchored:
    """Independent answers. If at most the share `at_most` is correct, the data row's solution joins the group.

    The solution is the column `column` of the row; it is graded as an answer is, and trained with the origin WRITTEN.
    DaGRPO, arXiv:2512.06337; that one solution joins groups without a correct answer is our reading.
    """

    column: str = "solution"
    at_most: float = 0.0

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        if self.column not in draw.prompt.row:
            have = ", ".join(map(str, draw.prompt.row)) or "no columns"
            raise Usage(
                f"Anchored needs the column {self.column!r} of each row",
                evidence=f"the row of {draw.prompt.id} has {have}",
                fix="use a task whose rows have solutions, such as hinted_sums, or set column to the column's name",
            )
        answers = await sampler.verify(await sampler.sample(draw.prompt.context, draw.n))
        correct = sum(s.verdict is not None and s.verdict.outcome is Outcome.correct for s in answers)
        if correct > self.at_most * draw.n:
            return Rollout(draw, tuple(answers))
        (empty,) = sampler.start(draw.prompt.context)
        (anchor,) = await sampler.verify([sampler.write(empty, str(draw.prompt.row[self.column]))])
        return Rollout(draw, (*answers, anchor))
