"""`WithGreedy`: a sampling strategy that adds a greedy answer, whose score is a baseline for the others."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import Draw, Role, Rollout, Sampler, Strategy, VerdictContents
from groupwise.rollout.together import together

__all__ = ["WithGreedy"]


@dataclass(frozen=True, slots=True)
class WithGreedy(Strategy):
    """Samples independent answers and a greedy one. The field `part` names the verdict part with the greedy score.

    The greedy answer has the role `greedy` and is not trained. ReMax, arXiv:2310.10505. An unverifiable greedy answer
    has the score 0.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role("greedy", "for each prompt"),)

    part: str = "baseline"

    @property
    def contents(self) -> VerdictContents:
        """The part that it adds to verdicts."""
        return VerdictContents((self.part,))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        greedy = replace(sampler.sampling, temperature=0.0)
        starts = sampler.start(draw.prompt.context, draw.n)
        (start,) = sampler.start(draw.prompt.context, role="greedy")
        requests = (*map(sampler.extend, starts), sampler.extend(start, sampling=greedy))
        *answers, best = await sampler.verify(await together(requests))
        assert best.verdict is not None, "verify returns a verdict for each sample"
        baseline = {self.part: best.verdict.value}
        return Rollout(draw, (*(answer.add_parts(baseline) for answer in answers), best))
