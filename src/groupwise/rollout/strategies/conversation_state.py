"""`ConversationState`: the state of a conversation with an environment between two turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from groupwise.core import BadData
from groupwise.data import Finish, Observation, Outcome, Sample, Sampler, Verdict
from groupwise.rollout.conversation import ReplyMismatch

__all__ = ["ConversationState", "dialogue_until", "judged"]


@dataclass(frozen=True, slots=True)
class ConversationState:
    """A conversation so far: its sample, the number of the model's turns, and whether it has ended.

    `environment_verdict` is the environment's, if it returned one.
    """

    sample: Sample
    turn_count: int = 0
    has_ended: bool = False
    environment_verdict: Verdict | None = None

    async def next_turn(self, sampler: Sampler, most: int) -> "ConversationState":
        """Take one turn: query the environment, then generate the model's turn (see `turn_after`)."""
        return await self.turn_after(await sampler.reply(self.sample), sampler, most)

    async def turn_after(self, observation: Observation, sampler: Sampler, most: int) -> "ConversationState":
        """Generate the model's turn after an observation, of an environment or of a sampling strategy.

        The conversation ends if the observation is a verdict, or None after a turn; if the model's turn does not
        stop; and, with the finish `length`, if another observation follows the last of `most` turns or leaves no room.
        """
        if isinstance(observation, Verdict):
            return replace(self, has_ended=True, environment_verdict=observation)
        if observation is None and self.turn_count:
            return replace(self, has_ended=True)
        sample = self.sample
        if observation is not None:
            try:
                sample = sampler.append(sample, observation)
            except BadData as error:
                cause = f"the observation cannot be tokenized: {error.what}"
                return replace(self, has_ended=True, environment_verdict=Verdict(Outcome.unverifiable, cause=cause))
            if self.turn_count == most or len(sample.tokens) >= sample.limit:
                cut = replace(self.sample, counts=sample.counts).with_finish(Finish.length)
                return replace(self, sample=cut, has_ended=True)
        sample = await sampler.extend(sample)
        return replace(self, sample=sample, turn_count=self.turn_count + 1, has_ended=sample.finish is not Finish.stop)


async def dialogue_until(
    dialogue: ConversationState, sampler: Sampler, start: Sample, *, most: int, turns: int | None = None
) -> ConversationState:
    """Take turns until the conversation has `turns` turns of the model, or ends. `start` is its empty sample.

    If the environment cannot be restored after a kill, the conversation starts over with a new one.
    """
    try:
        return await _go_on(dialogue, sampler, most, turns)
    except ReplyMismatch:
        return await _go_on(ConversationState(start), sampler, most, turns)


async def _go_on(dialogue: ConversationState, sampler: Sampler, most: int, turns: int | None) -> ConversationState:
    while not (dialogue.has_ended or dialogue.turn_count == turns):
        dialogue = await dialogue.next_turn(sampler, most)
    return dialogue


async def judged(dialogues: Sequence[ConversationState], sampler: Sampler) -> tuple[Sample, ...]:
    """Grade ended conversations: the environment's verdict if it returned one, else the verifier's on the last turn.

    The count `failed` is 1 for a conversation that the environment aborted.
    """
    answers = iter(await sampler.verify([d.sample.last_turn for d in dialogues if d.environment_verdict is None]))
    return tuple(_judged(d, d.environment_verdict or next(answers).verdict) for d in dialogues)


def _judged(dialogue: ConversationState, verdict: Verdict | None) -> Sample:
    assert verdict is not None, "verify returns a verdict for each sample"
    failed = dialogue.environment_verdict is not None and verdict.outcome is Outcome.unverifiable
    start = len(dialogue.sample.tokens) - len(dialogue.sample.last_turn.tokens)
    return dialogue.sample.with_verdict(verdict, start=start).add_counts({"failed": int(failed)})
