"""Sampling strategies: independent answers, and conversations with an environment."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import Draw, Rollout, Sampler, Strategy
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.strategies.conversation_state import ConversationState, dialogue_until, judged

__all__ = ["Independent", "Turns"]


@dataclass(frozen=True, slots=True)
class Independent(Strategy):
    """Generates `draw.n` independent answers to the prompt, as one group."""

    works_on_whole_answers: ClassVar[bool] = True
    """It continues no answer, so it needs neither a conversation nor an answer token by token."""

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await sampler.sample(draw.prompt.token_ids, draw.n)
        return Rollout(draw, tuple(await sampler.verify(answers)))


@dataclass(frozen=True, slots=True)
class Turns(Strategy):
    """Generates `draw.n` conversations with the environment, as one group: model and environment take turns.

    A conversation ends when the environment returns None. When all have ended, the verifier judges their last turns. A
    conversation also ends when the environment returns a verdict. After `max_turns` turns of the model, or when the
    next observation would use up `max_tokens`, it is cut with the finish `length`, and the last turn is judged. One
    sample is one conversation. Only the model's tokens are trained; the budget includes the environment's tokens. The
    count `failed` is 1 for a conversation that the environment aborted: it raised, timed out, or returned an invalid
    observation.
    """

    needs_environment: ClassVar[bool] = True

    max_turns: int = 8

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns is {self.max_turns}: a conversation has at least one turn\ntake 1 or more")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        starts = sampler.start(draw.prompt.token_ids, draw.n)
        dialogues = await together(
            dialogue_until(ConversationState(start), sampler, start, most=self.max_turns) for start in starts
        )
        return Rollout(draw, await judged(dialogues, sampler))
