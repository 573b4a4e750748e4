"""A sampling strategy whose samples are the calls of an agent."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import THREAD, Draw, Role, Rollout, Sampler, Strategy
from groupwise.rollout.gather_coroutines import together

__all__ = ["AgentEpisodes"]


@dataclass(frozen=True, slots=True)
class AgentEpisodes(Strategy):
    """Runs the recipe's agent `draw.n` times; the last conversations of the runs are one group of answers.

    Each further conversation of a run, such as a sub-agent's or one with a rewritten history, is a sample with the role
    `thread`: it has the verdict and the advantage of its run's answer, whose index is its `parent`.
    """

    needs_agent: ClassVar[bool] = True
    roles: ClassVar[tuple[Role, ...]] = (Role(THREAD, "where an agent opens several conversations"),)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        episodes = await together(sampler.episode(number) for number in range(draw.n))
        answers = tuple(answer for answer, *_ in episodes)
        threads = (replace(thread, parent=i) for i, (_, *others) in enumerate(episodes) for thread in others)
        return Rollout(draw, (*answers, *threads))
