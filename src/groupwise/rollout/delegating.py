"""`Delegating`: a sampling strategy of a main agent that asks a helper. Both are the same policy, and trained."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from groupwise.data import CountedText, Draw, Finish, Outcome, Role, Rollout, Sample, Sampler, Strategy, Verdict
from groupwise.rollout.attempts import context_of
from groupwise.rollout.dialogue import Dialogue, judged
from groupwise.rollout.together import together
from groupwise.rollout.wording import AUTO, UNWORDED, Forms, check_wording, fill

__all__ = ["Delegating"]

PROBLEM = "{problem}"
TAGS = "our wording, with the tags of AQ-MedAI/MrlX, MrlX-DeepResearch/agent_co_train, 82aabc0"
TEXTS = {
    "main": Forms(
        PROBLEM,
        "{problem}\n\nYou can leave parts of the work to a helper. To ask it, end your turn with the task, complete in "
        "itself, between <tool_call> and </tool_call>. Its result comes back between <tool_response> and "
        "</tool_response>. Make one call at a time. When you know the answer, write it without another call.",
        TAGS,
    ),
    "opens": Forms("", "<tool_call>", TAGS),
    "asks": Forms("=", "</tool_call>", TAGS),
    "helper": Forms(
        "{request}",
        "{request}\n\nSolve this task step by step, and write its result between <result> and </result>.",
        TAGS,
    ),
    "marker": Forms("#", "<result>", TAGS),
    "closes": Forms("", "</result>", TAGS),
    "words": Forms("{result};", "<tool_response>\n{result}\n</tool_response>", TAGS),
}
"""The texts between the two agents. In the packaged form a turn is itself the helper's prompt."""


@dataclass(frozen=True, slots=True)
class Delegating(Strategy):
    """`draw.n` conversations of a main agent with a helper: the same policy in both roles. M-GRPO, arXiv:2511.13288.

    The main agent's prompt is `main`. A turn that ends in `asks` is a request: its text, or the part after its last
    `opens`, is put into `helper`, the helper's prompt. The text after the last `marker` of the answer, up to `closes`,
    in `words`, continues the conversation. The helper's answers have the role `helper` and are one group. Each has the
    verdict of its main agent, but is malformed without a marker or an end. With `aligned`, each main agent that asked
    has as many helpers in training: some are dropped or copied at random. 0 keeps all. The count `calls` is that of all
    helpers.
    """

    forms: ClassVar[dict[str, Forms]] = TEXTS

    calls: int = 4
    aligned: int = 0
    main: str = AUTO
    opens: str = AUTO
    asks: str = AUTO
    helper: str = AUTO
    marker: str = AUTO
    closes: str = AUTO
    words: str = AUTO

    def __post_init__(self) -> None:
        for text, name in ((self.main, "problem"), (self.helper, "request"), (self.words, "result")):
            check_wording(text, (name,))
        if self.calls < 1 or self.aligned < 0 or not (self.asks and self.marker):
            raise ValueError(f"{self}: needs calls >= 1, aligned >= 0, and asks and marker not empty")

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its samples besides answers."""
        return (Role("helper", f"where a turn of the main agent ends in {self.asks!r} (asks)"),)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        assert AUTO not in (self.asks, self.marker), UNWORDED
        plain = draw.prompt.context
        told = plain if self.main == PROBLEM else context_of(sampler, self.main, {"problem": draw.prompt.text}) or plain
        starts = sampler.start(told, draw.n)
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
        turn = sample.last_turn.text
        if not turn.endswith(self.asks) or len(answers) == self.calls:
            return None
        request = turn.removesuffix(self.asks).rpartition(self.opens)[2].strip() if self.opens else turn
        if not (context := context_of(sampler, self.helper, {"request": request})):
            return None
        (start,) = sampler.start(context, role="helper")
        helper = await sampler.extend(replace(start, stream=(*sample.stream, len(answers))))
        answers.append(helper)
        _, marker, result = helper.text.rpartition(self.marker)
        if self.closes:
            result = result.partition(self.closes)[0].strip()
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
