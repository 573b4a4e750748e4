"""`RecoveryPrompts`: a sampling strategy that turns failed attempts with their feedback into new prompts."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import BadData, Draw, Ids, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.attempts import context_of, is_correct, is_graded, score_of
from groupwise.rollout.drafts import CORRECTED
from groupwise.rollout.strategy import Independent
from groupwise.rollout.wording import AUTO, Forms, check_wording

__all__ = ["RecoveryPrompts"]


@dataclass(frozen=True, slots=True)
class RecoveryPrompts(Strategy):
    """Runs another sampling strategy. Each distinct failed attempt becomes a prompt that `Fission` may draw later.

    A failure is an answer that is not correct and scores below `below`, and whose verdict has feedback. The new prompt
    is `words`; after a conversation, the feedback follows as another reply of the environment. It must leave room.
    Failures of such a prompt become none. Fission-GRPO, arXiv:2601.15625, with the verifier as the error simulator.
    """

    needs_feedback: ClassVar[bool] = True
    forms: ClassVar[dict[str, Forms]] = {"words": CORRECTED}

    strategy: Strategy = Independent()  # noqa: RUF009
    below: float = 1.0
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "draft", "feedback"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.strategy(draw, sampler)
        if draw.memo.get("recovery"):
            return rollout
        failed = {s.text.strip(): s for s in reversed(rollout.samples) if self._is_failure(s)}
        contexts = [c for s in reversed(failed.values()) if (c := self._context(draw, sampler, s))]
        return replace(rollout, draw=replace(draw, memo={**draw.memo, "failures": contexts}))

    def _is_failure(self, s: Sample) -> bool:
        if s.role != "answer" or not is_graded(s) or is_correct(s):
            return False
        return score_of(s) < self.below and bool(s.verdict and s.verdict.feedback)

    def _context(self, draw: Draw, sampler: Sampler, failure: Sample) -> Ids:
        """The prompt with a failure and its feedback; empty if it leaves no room or cannot be tokenized."""
        feedback = failure.verdict.feedback if failure.verdict else ""
        if not failure.is_conversation:
            values = {"problem": draw.prompt.text, "draft": failure.text, "feedback": feedback}
            return context_of(sampler, self.words, values)
        try:
            longer = sampler.append(failure, feedback)
        except BadData:
            return ()
        context = longer.context + longer.tokens
        return context if sampler.room(context) > 0 else ()
