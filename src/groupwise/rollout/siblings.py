"""`SiblingView`: wrong answers get a second prompt, with a correct answer in it, under which a teacher scores them."""

from dataclasses import dataclass, replace
from typing import ClassVar

from groupwise.data import Draw, Outcome, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.attempts import attempts, context_of, is_correct
from groupwise.rollout.wording import AUTO, Forms, check_wording

__all__ = ["SiblingView"]


@dataclass(frozen=True, slots=True)
class SiblingView(Strategy):
    """Samples answers. If any is correct, each wrong one gets a second prompt with a correct one, for a teacher.

    The wrong answer's own tokens are then scored by a teacher under the view. SDPO, arXiv:2601.20802. The first correct
    answer is the solution. An answer for which the view leaves no room has none.
    """

    forms: ClassVar[dict[str, Forms]] = {
        "words": Forms(
            "{problem}{solution}{problem}",
            "{problem}\nCorrect solution:\n\n{solution}\n\nCorrectly solve the original question.",
            "lasgroup/SDPO, verl/trainer/config/actor/actor.yaml, 0736c78",
        )
    }

    view: str = "sibling"
    words: str = AUTO

    def __post_init__(self) -> None:
        check_wording(self.words, ("problem", "solution"))

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await attempts(sampler, draw.prompt.context, draw.n)
        solution = next((s for s in answers if is_correct(s)), None)
        if solution is None:
            return Rollout(draw, tuple(answers))
        context = context_of(sampler, self.words, {"problem": draw.prompt.text, "solution": solution.text})
        room = sampler.room(context) if context else -1

        def viewed(s: Sample) -> Sample:
            wrong = s.verdict is not None and s.verdict.outcome in (Outcome.wrong, Outcome.malformed)
            return replace(s, views={self.view: context}) if wrong and len(s.tokens) <= room else s

        return Rollout(draw, tuple(map(viewed, answers)))
