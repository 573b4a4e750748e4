"""`Replayed`: a sampling strategy that returns stored answers in place of new ones."""

from dataclasses import dataclass, replace

from groupwise.data import Draw, Rollout, Sampler, Strategy, verdicts_have
from groupwise.rollout.stored import restored
from groupwise.rollout.strategy import Independent

__all__ = ["Replayed"]


@verdicts_have("replay")
@dataclass(frozen=True, slots=True)
class Replayed(Strategy):
    """Returns the stored answer that the curriculum `FreshReplay` drew, with its log-probs; else runs another strategy.

    The part `replay` of an answer is its importance weight, 1 for a new answer. Nothing is generated for a stored one.
    """

    strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        weight = {"replay": float(draw.memo.get("replay", 1.0))}
        if "sample" in draw.memo:
            (empty,) = sampler.start(draw.prompt.context)
            return Rollout(draw, (restored(draw.memo["sample"], empty).add_parts(weight),))
        rollout = await self.strategy(draw, sampler)
        return replace(rollout, samples=tuple(s.add_parts(weight) for s in rollout.samples))
