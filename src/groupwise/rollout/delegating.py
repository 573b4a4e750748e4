"""`Delegating`: a sampling strategy of a main agent that asks a helper. Both are the same policy, and trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from groupwise.data import CountedText, Draw, Finish, Outcome, Role, Rollout, Sample, Sampler, Verdict
from groupwise.rollout.attempts import prompt_of
from groupwise.rollout.dialogue import Dialogue, judged
from groupwise.rollout.together import together
from groupwise.rollout.wording import check_wording, fill

SOCKET = "Strategy"
__all__ = ["Delegating"]


@dataclass(frozen=True, slots=True)
class Delegating:
    """`draw.n` conversations of a main agent with a helper: the same policy in both roles. M-GRPO, arXiv:2511.13288.

    A turn that ends in `asks` is the helper's prompt. The text after the last `marker` of its answer, in `words`,
    continues the conversation. The helper's answers have the role `helper` and are one group. Each has the verdict of
    its main agent, but is malformed without a marker or an end. With `aligned`, each main agent that asked has as many
    helpers in training: some are dropped or copied at random. 0 keeps all. The count `calls` is that of all helpers.
    """

    calls: int = 4
    aligned: int = 0
    asks: str = "="
    marker: str = "#"
    words: str = "{result};"

    def __post_init__(self) -> None:
        check_wording(self.words, ("result",))
        if self.calls < 1 or self.aligned < 0 or not (self.asks and self.marker):
            raise ValueError(f"{self}: needs calls >= 1, aligned >= 0, and asks and marker not empty")

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its samples besides answers."""
        return (Role("helper", f"where a turn of the main agent ends in {self.asks!r} (asks)"),)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        starts = sampler.start(draw.prompt.context, draw.n)
        helpers: list[list[Sample]] = [[] for _ in starts]
        dialogues = await together(self._conversation(sampler, *pair) for pair in zip(starts, helpers))
        mains = await judged(dialogues, sampler)
        trained = [
            replace(self._graded(helper, main), parent=i)
            for i, (main, answers) in enumerate(zip(mains, helpers))
            for helper in (aligned(answers, self.aligned, sampler.random(i)) if self.aligned else answers)
        ]
        return Rollout(draw, (*mains, *trained))

    async def _conversation(self, sampler: Sampler, start: Sample, answers: list[Sample]) -> Dialogue:
        """Generate the conversation of one main agent. The helper's answers are added to `answers`."""
        dialogue = Dialogue(start)
        while not dialogue.ended:
            dialogue = await dialogue.turn_after(
                await self._reply(sampler, answers, dialogue.sample), sampler, self.calls + 1
            )
        return dialogue

    async def _reply(self, sampler: Sampler, answers: list[Sample], sample: Sample) -> CountedText | None:
        """The helper's result, if the main agent's last turn asks for one and `calls` allows it; else None."""
        request = sample.last_turn.text
        if not request.endswith(self.asks) or len(answers) == self.calls:
            return None
        if not (context := prompt_of(sampler, request)):
            return None
        (start,) = sampler.start(context, role="helper")
        helper = await sampler.extend(replace(start, stream=(*sample.stream, len(answers))))
        answers.append(helper)
        _, marker, result = helper.text.rpartition(self.marker)
        return CountedText(fill(self.words, {"result": result if marker else ""}), calls=1)

    def _graded(self, helper: Sample, main: Sample) -> Sample:
        """A helper's answer with its verdict: that of its main agent, or malformed."""
        assert main.verdict is not None, "the main agents are judged"
        outcome = main.verdict.outcome
        if outcome is Outcome.malformed:
            outcome = Outcome.wrong
        if helper.finish is not Finish.stop or self.marker not in helper.text:
            outcome = Outcome.malformed
        score = main.verdict.score if outcome is main.verdict.outcome else None
        return helper.with_verdict(Verdict(outcome, score, cause=main.verdict.cause))


def aligned(answers: Sequence[Sample], size: int, random: Random) -> list[Sample]:
    """Exactly `size` answers: some are dropped or copied at random. Empty if there are none to copy."""
    if len(answers) >= size or not answers:
        return [answers[i] for i in sorted(random.sample(range(len(answers)), min(size, len(answers))))]
    streams = ((*answers[0].stream[:-1], k) for k in range(len(answers), size))
    return [*answers, *(replace(random.choice(answers), stream=stream) for stream in streams)]
