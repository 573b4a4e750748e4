"""`Cued`: a sampling strategy that answers hard prompts again, given the beginning of a correct answer."""

from dataclasses import dataclass

from groupwise.data import Draw, Rollout, Sample, Sampler, Strategy
from groupwise.rollout.attempts import attempts, is_correct, score_of, with_role

__all__ = ["Cued"]


@dataclass(frozen=True, slots=True)
class Cued(Strategy):
    """Samples answers. If their mean score is below the recent mean, new ones continue a prefix of a correct one.

    The share of the correct answer that is given grows with the gap to the mean of recent rewards (`RecentRewards`), up
    to `most`. The cue is not trained, and the first round gets the role `first`. Reg-GRPO's augmentation of hard
    prompts, arXiv:2506.07464; the share is our reading.
    """

    most: float = 0.5

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await attempts(sampler, draw.prompt.context, draw.n)
        cue = self._cue(answers, draw.memo.get("mean"))
        if not cue:
            return Rollout(draw, tuple(answers))
        again = await attempts(sampler, draw.prompt.context, draw.n, prefix=cue)
        return Rollout(draw, (*again, *with_role(answers, "first")))

    def _cue(self, answers: list[Sample], usual: float | None) -> tuple[int, ...]:
        """A prefix of a correct answer, longer for a lower mean score; empty for a mean of `usual` or more."""
        correct = next((s for s in answers if is_correct(s)), None)
        mean = sum(map(score_of, answers)) / len(answers)
        if usual is None or correct is None or mean >= usual:
            return ()
        share = self.most * (min((usual - mean) / abs(usual), 1.0) if usual else 1.0)
        return correct.tokens[: int(share * (len(correct.tokens) - 1))]
