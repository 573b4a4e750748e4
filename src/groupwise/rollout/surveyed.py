"""`Surveyed`: a sampling strategy that continues beginnings of answers, which the curriculum gives."""

from dataclasses import dataclass

from groupwise.data import Draw, Rollout, Sampler
from groupwise.rollout.attempts import attempts

SOCKET = "Strategy"
__all__ = ["Surveyed"]


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Independent answers that continue an answer prefix from `Survey`. The prefix is not trained. ReST-GRPO.

    The whole answer is graded. The answers of a survey, for the curriculum `Survey`, are not trained.
    arXiv:2508.19576.
    """

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prefix = tuple(draw.memo.get("prefix", ()))
        answers = await attempts(sampler, draw.prompt.context, draw.n, prefix=prefix)
        if draw.memo.get("survey"):
            return Rollout(draw, tuple(answers), selected=(False,) * len(answers), cause="survey")
        return Rollout(draw, tuple(answers))
