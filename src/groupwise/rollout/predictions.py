"""`Predictions`: a sampling strategy in which the policy also predicts its pass rate and answer length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import (
    BadData,
    Draw,
    Finish,
    Ids,
    Outcome,
    Role,
    Rollout,
    Sample,
    Sampler,
    Strategy,
    Verdict,
    verdicts_have,
)
from groupwise.rollout.agreement import OF, Statistics, agreement, corrected, predicted
from groupwise.rollout.attempts import attempts, context_of
from groupwise.rollout.together import together
from groupwise.rollout.wording import AUTO, Forms, check_wording

__all__ = ["Predictions"]

PREDICTED = Forms(
    "{problem}=",
    "Think step-by-step between <meta> and </meta>, ensuring comprehensive and detailed reasoning especially for "
    "determining the pass_rate and solution_length values. For each component (math_notion, pass_rate, "
    "solution_length), provide a comprehensive illustration or example during your reasoning in the <meta> section to "
    "clarify how each value is decided. When determining math_notion, ensure that the notions listed do not directly "
    "include the notions already written in the problem statement. After </meta>, return a JSON object with three "
    "keys:\n- math_notion (list[str])\n- pass_rate (integer from 0 to 8)\n- solution_length (integer, in tokens)\n\n"
    "Problem: {problem}",
    "akatigre/MASA-RL, masa_train/masa_rl_dataset.py, 80b3cfa, without its bounds of the length",
)
"""The prompt for a prediction."""


@verdicts_have("length", "rate", "notions")
@dataclass(frozen=True, slots=True)
class Predictions(Strategy):
    """Samples answers, and `count` predictions of their pass rate and length, as samples with their own role. MASA.

    A prediction answers the prompt in `words` with the number of correct answers of eight, the length of a correct
    answer, and the notions that occur in correct answers. Its score is the mean of three agreements with the answers
    (`agreement`). arXiv:2510.03259.

    With `gate`, a prompt is skipped if the predictions expect no correct answer or only such. With a `length_factor`,
    an answer that reaches so many times the mean predicted length ends there, and is wrong. With `expert`, the
    prediction with the best notions, if their agreement is at least this, is written again with the true numbers, with
    the role `expert`.
    """

    roles: ClassVar[tuple[Role, ...]] = (
        Role("prediction", "for each prompt"),
        Role("expert", "where a prediction has good notions, and `expert` is above 0", alone=True, written=True),
    )
    forms: ClassVar[dict[str, Forms]] = {"words": PREDICTED}

    count: int = 16
    words: str = AUTO
    gate: bool = False
    length_factor: float = 0.0
    expert: float = 0.0

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem",))
        if self.count < 1 or self.length_factor < 0 or not 0 <= self.expert <= 1:
            raise ValueError(f"{self}: needs count >= 1, length_factor >= 0 and 0 <= expert <= 1")

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        problem = draw.prompt.text
        if not (context := context_of(sampler, self.words, {"problem": problem})):
            return Rollout(draw, tuple(await attempts(sampler, draw.prompt.context, draw.n)))
        predictions = await sampler.sample(context, self.count, role="prediction")
        read = [predicted(s.text) for s in predictions]
        rates = [p.rate for p in read if p.rate is not None]
        if self.gate and rates and round(sum(rates) / len(rates)) in (0, OF):
            return Rollout(draw, tuple(predictions), selected=(False,) * self.count, cause="predicted")
        answers = await self._answers(draw, sampler, [p.length for p in read if p.length is not None])
        statistics = Statistics.of(answers)
        judged = [s.with_verdict(agreement(p, statistics, problem)) for s, p in zip(predictions, read)]
        return Rollout(draw, (*answers, *judged, *self._expert(judged, statistics, context, sampler)))

    async def _answers(self, draw: Draw, sampler: Sampler, lengths: Sequence[int]) -> list[Sample]:
        """Sample and grade the answers. An answer that the limit by `length_factor` cuts is wrong."""
        if not (self.length_factor and lengths):
            return await attempts(sampler, draw.prompt.context, draw.n)
        limit = max(1, int(self.length_factor * sum(lengths) / len(lengths)))
        starts = sampler.start(draw.prompt.context, draw.n)
        answers = await together(sampler.extend(s, limit=limit) for s in starts)
        whole = iter(await sampler.verify([s for s in answers if s.finish is not None]))
        return [next(whole) if s.finish is not None else _ended(s) for s in answers]

    def _expert(
        self, predictions: Sequence[Sample], statistics: Statistics, context: Ids, sampler: Sampler
    ) -> tuple[Sample, ...]:
        """The prediction with the highest verdict part `notions`, rewritten with the true numbers as a training target.

        Empty if the part is below `expert`, if the text is too long, or has a character without a token.
        """
        best = max(predictions, key=_notions_in)
        if not self.expert or _notions_in(best) < self.expert or not (text := corrected(best.text, statistics)):
            return ()
        (start,) = sampler.start(context, role="expert")
        try:
            target = sampler.write(start, text)
        except BadData:
            return ()
        return (target.with_verdict(Verdict(Outcome.correct)),) if len(target.tokens) <= start.limit else ()


def _ended(answer: Sample) -> Sample:
    return answer.with_finish(Finish.length).with_verdict(Verdict(Outcome.wrong))


def _notions_in(prediction: Sample) -> float:
    return prediction.verdict.parts.get("notions", 0.0) if prediction.verdict else 0.0
