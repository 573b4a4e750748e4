"""`Proposing`: a strategy whose answers also propose new problems."""

from dataclasses import dataclass, replace

from groupwise.data import Draw, Rollout, Sampler, Strategy, verdicts_have
from groupwise.rollout.attempts import prompt_of
from groupwise.rollout.proposals import ProblemSource, SumProposals
from groupwise.rollout.strategy import Independent

__all__ = ["Proposing"]


@verdicts_have("diverse")
@dataclass(frozen=True, slots=True)
class Proposing(Strategy):
    """Runs another sampling strategy, and collects the new problems that its answers propose, for `Synthesised`.

    The part `diverse` of an answer is the expected diversity of its proposal's kind, from the draw's memo; 0 without a
    proposal. Problems that leave no room for an answer are left out. Syn-GRPO, arXiv:2511.19343.
    """

    strategy: Strategy = Independent()  # noqa: RUF009
    source: ProblemSource = SumProposals()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.strategy(draw, sampler)
        diverse = draw.memo.get("diverse", {})
        proposals = [self.source.propose(s.text) if s.role == "answer" else None for s in rollout.samples]
        expected = (diverse.get(p.kind, 0.0) if p else 0.0 for p in proposals)
        samples = tuple(s.add_parts({"diverse": x}) for s, x in zip(rollout.samples, expected))
        distinct = {p.text: p for p in proposals if p}
        problems = [{**p._asdict(), "context": c} for p in distinct.values() if (c := prompt_of(sampler, p.text))]
        return Rollout(
            replace(draw, memo={**draw.memo, "proposals": problems}), samples, rollout.selected, rollout.cause
        )
