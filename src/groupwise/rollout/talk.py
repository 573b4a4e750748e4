"""`Talk`: a conversation with the environment, taken turn by turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from groupwise.data import BadData, Finish, Observation, Outcome, Sample, Sampler, Verdict
from groupwise.rollout.conversation import ReplayMismatch

__all__ = ["Talk", "judged", "talk_until"]


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation so far: its sample, the number of the model's turns, and whether it has ended.

    `verdict` is the environment's, if it returned one.
    """

    sample: Sample
    turns: int = 0
    ended: bool = False
    verdict: Verdict | None = None

    async def next_turn(self, sampler: Sampler, most: int) -> "Talk":
        """The environment's observation and the model's turn after it (see `turn_after`)."""
        return await self.turn_after(await sampler.reply(self.sample), sampler, most)

    async def turn_after(self, observation: Observation, sampler: Sampler, most: int) -> "Talk":
        """The model's turn after an observation, which need not be an environment's.

        The conversation ends if the observation is a verdict, or None after a turn; if the model's turn does not
        stop; and, with the finish `length`, if another observation follows the last of `most` turns or leaves no room.
        """
        if isinstance(observation, Verdict):
            return replace(self, ended=True, verdict=observation)
        if observation is None and self.turns:
            return replace(self, ended=True)
        sample = self.sample
        if observation is not None:
            try:
                sample = sampler.append(sample, observation)
            except BadData as error:
                cause = f"the observation cannot be tokenized: {error.what}"
                return replace(self, ended=True, verdict=Verdict(Outcome.unverifiable, cause=cause))
            if self.turns == most or len(sample.tokens) >= sample.limit:
                cut = replace(self.sample, counts=sample.counts).with_finish(Finish.length)
                return replace(self, sample=cut, ended=True)
        sample = await sampler.extend(sample)
        return replace(self, sample=sample, turns=self.turns + 1, ended=sample.finish is not Finish.stop)


async def talk_until(talk: Talk, sampler: Sampler, start: Sample, *, most: int, turns: int | None = None) -> Talk:
    """The conversation after so many turns of the model, or at its end. `start` is its empty sample.

    If the environment cannot be restored after a kill, the conversation starts over with a new one.
    """
    try:
        return await _go_on(talk, sampler, most, turns)
    except ReplayMismatch:
        return await _go_on(Talk(start), sampler, most, turns)


async def _go_on(talk: Talk, sampler: Sampler, most: int, turns: int | None) -> Talk:
    while not (talk.ended or talk.turns == turns):
        talk = await talk.next_turn(sampler, most)
    return talk


async def judged(talks: Sequence[Talk], sampler: Sampler) -> tuple[Sample, ...]:
    """Ended conversations with their verdicts: the environment's, else the verifier's on the last turn.

    The count `failed` is 1 for a conversation that the environment aborted.
    """
    answers = iter(await sampler.verify([talk.sample.last_turn for talk in talks if talk.verdict is None]))
    return tuple(_judged(talk, talk.verdict or next(answers).verdict) for talk in talks)


def _judged(talk: Talk, verdict: Verdict | None) -> Sample:
    assert verdict is not None, "verify returns a verdict for each sample"
    failed = talk.verdict is not None and verdict.outcome is Outcome.unverifiable
    start = len(talk.sample.tokens) - len(talk.sample.last_turn.tokens)
    return talk.sample.with_verdict(verdict, start=start).add_counts({"failed": int(failed)})
