"""How a draw becomes a rollout."""

from dataclasses import dataclass, replace
from itertools import count

from groupwise.data import BadData, Draw, Finish, Outcome, Rollout, Sample, Sampler, Verdict
from groupwise.rollout.conversation import ReplayMismatch
from groupwise.rollout.together import together

SOCKET = "Strategy"
__all__ = ["Independent", "Turns"]


@dataclass(frozen=True, slots=True)
class Independent:
    """`draw.n` answers to the prompt, each on its own, as one group."""

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await sampler.sample(draw.prompt.context, draw.n)
        return Rollout(draw, tuple(await sampler.verify(answers)))


@dataclass(frozen=True, slots=True)
class Turns:
    """`draw.n` conversations with the recipe's environment, as one group: the model speaks, the environment answers.

    One ends when the environment has nothing more to say, and then the model's last turn is the answer that is judged;
    or when it gives the verdict itself. At `most` turns of the model's, or where the environment's next words would use
    up `max_tokens`, it is cut short as any answer is (`length`), and the last turn judged. One sample is one
    conversation: only what the model said is trained on, and the budget counts what the environment said too.
    Counted is `failed`, a conversation that the environment broke off: it raised, was late, or said what is no answer.
    """

    most: int = 8

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most is {self.most}: a conversation has at least one turn\ntake 1 or more")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        begun = sampler.start(draw.prompt.context, draw.n)
        return Rollout(draw, tuple(await together(self._judged(sampler, sample) for sample in begun)))

    async def _judged(self, sampler: Sampler, sample: Sample) -> Sample:
        try:
            sample, verdict = await self._converse(sampler, sample)
        except ReplayMismatch:  # the environment stands elsewhere than before a kill: begin again with it
            sample, verdict = await self._converse(sampler, sample)
        failed = verdict is not None and verdict.outcome is Outcome.unverifiable
        if verdict is None:
            (answer,) = await sampler.verify([sample.last_turn])
            assert answer.verdict is not None, "verify gives each sample a verdict"
            verdict = answer.verdict
        return sample.with_verdict(verdict).add_counts({"failed": int(failed)})

    async def _converse(self, sampler: Sampler, sample: Sample) -> tuple[Sample, Verdict | None]:
        """The whole conversation, and the verdict if it ended with one."""
        for turn in count():
            reply = await sampler.reply(sample)
            if isinstance(reply, Verdict):
                return sample, reply
            if reply is None and turn:
                return sample, None
            if reply is not None:
                try:
                    longer = sampler.append(sample, reply)
                except BadData as error:
                    return sample, Verdict(Outcome.unverifiable, cause=f"the environment spoke: {error.what}")
                if turn == self.most or len(longer.tokens) >= sample.limit:
                    return replace(sample, counts=longer.counts).with_finish(Finish.length), None
                sample = longer
            sample = await sampler.extend(sample)
            if sample.finish is not Finish.stop:
                return sample, None
        raise AssertionError("a conversation ends at the latest after `most` turns")
