"""`Surveyed`: a sampling strategy that continues beginnings of answers, which the curriculum gives."""

from dataclasses import dataclass, replace

from groupwise.data import Draw, Rollout, Sampler, Strategy
from groupwise.rollout.strategy import Independent

__all__ = ["Surveyed"]


@dataclass(frozen=True, slots=True)
class Surveyed(Strategy):
    """Runs another strategy, whose answers continue a prefix from `Survey`. The prefix is not trained.

    The whole answer is graded. The answers of a survey, for the curriculum `Survey`, are not trained. ReST-GRPO,
    arXiv:2508.19576.
    """

    strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        prefix = tuple(draw.memo.get("prefix", ()))
        rollout = await self.strategy(draw, sampler.with_prefix(prefix))
        if draw.memo.get("survey"):
            return replace(rollout, selected=(False,) * len(rollout.samples), cause="survey")
        return rollout
