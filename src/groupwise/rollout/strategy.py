"""Sampling strategies: independent answers, and conversations with an environment."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from groupwise.data import BadData, Draw, Finish, Outcome, Rollout, Sample, Sampler, Verdict
from groupwise.rollout.conversation import ReplayMismatch
from groupwise.rollout.together import together

SOCKET = "Strategy"
__all__ = ["Independent", "Turns"]


@dataclass(frozen=True, slots=True)
class Independent:
    """Generates `draw.n` independent answers to the prompt, as one group."""

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await sampler.sample(draw.prompt.context, draw.n)
        return Rollout(draw, tuple(await sampler.verify(answers)))


@dataclass(frozen=True, slots=True)
class Turns:
    """Generates `draw.n` conversations with the environment, as one group: model and environment take turns.

    A conversation ends when the environment returns None. When all have ended, the verifier judges their last turns. A
    conversation also ends when the environment returns a verdict. After `most` turns of the model, or when the next
    observation would use up `max_tokens`, it is cut with the finish `length`, and the last turn is judged. One sample
    is one conversation. Only the model's tokens are trained; the budget includes the environment's tokens. The count
    `failed` is 1 for a conversation that the environment aborted: it raised, timed out, or returned an invalid
    observation.
    """

    most: int = 8

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most is {self.most}: a conversation has at least one turn\ntake 1 or more")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        samples = sampler.start(draw.prompt.context, draw.n)
        ended = await together(self._conversation(sampler, sample) for sample in samples)
        answers = iter(await sampler.verify([sample.last_turn for sample, verdict in ended if verdict is None]))
        judged = (self._judged(sample, verdict, answers) for sample, verdict in ended)
        return Rollout(draw, tuple(judged))

    def _judged(self, sample: Sample, verdict: Verdict | None, answers: Iterator[Sample]) -> Sample:
        """The conversation with its verdict: the environment's, else the verifier's on the next sample in `answers`."""
        failed = verdict is not None and verdict.outcome is Outcome.unverifiable
        if verdict is None:
            verdict = next(answers).verdict
            assert verdict is not None, "verify returns a verdict for each sample"
        start = len(sample.tokens) - len(sample.last_turn.tokens)
        return sample.with_verdict(verdict, start=start).add_counts({"failed": int(failed)})

    async def _conversation(self, sampler: Sampler, sample: Sample) -> tuple[Sample, Verdict | None]:
        try:
            return await self._converse(sampler, sample)
        except ReplayMismatch:  # the environment could not be restored after a kill: start over with a new one
            return await self._converse(sampler, sample)

    async def _converse(self, sampler: Sampler, sample: Sample) -> tuple[Sample, Verdict | None]:
        """The finished conversation, and the verdict if the environment returned one."""
        for turn in count():
            observation = await sampler.reply(sample)
            if isinstance(observation, Verdict):
                return sample, observation
            if observation is None and turn:
                return sample, None
            if observation is not None:
                try:
                    longer = sampler.append(sample, observation)
                except BadData as error:
                    return sample, Verdict(
                        Outcome.unverifiable, cause=f"the observation cannot be tokenized: {error.what}"
                    )
                if turn == self.most or len(longer.tokens) >= sample.limit:
                    return replace(sample, counts=longer.counts).with_finish(Finish.length), None
                sample = longer
            sample = await sampler.extend(sample)
            if sample.finish is not Finish.stop:
                return sample, None
        raise AssertionError("a conversation has at most `most` turns")
