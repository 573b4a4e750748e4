"""`PairwiseWins`: a sampling strategy whose answers are compared two by two."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from groupwise.data import Draw, Prompt, Rollout, Sample, Sampler, Strategy, verdicts_have
from groupwise.data.errors import ends_run
from groupwise.rollout.attempts import is_graded
from groupwise.rollout.pair_judges import HigherScore, PairJudge
from groupwise.rollout.strategy import Independent
from groupwise.rollout.together import together

__all__ = ["PairwiseWins"]


@verdicts_have("wins", "unjudged")
@dataclass(frozen=True, slots=True)
class PairwiseWins(Strategy):
    """Adds the part `wins` to verdicts: the share of the group's other answers that an answer beats. Pref-GRPO.

    A tie is half a win. Each pair is judged once, in the order of sampling. A call of the judge that fails counts as a
    tie; the part `unjudged` is the share of an answer's pairs that failed. An answer without a rival has 0 wins.
    arXiv:2508.20751.
    """

    judge: PairJudge = HigherScore()  # noqa: RUF009
    strategy: Strategy = Independent()  # noqa: RUF009

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        rollout = await self.strategy(draw, sampler)
        samples = list(rollout.samples)
        rivals = [i for i, sample in enumerate(samples) if has_rivals(sample)]
        pairs = [(i, j) for i, j in combinations(rivals, 2) if samples[i].group == samples[j].group]
        results: dict[int, list[float | None]] = {i: [] for i in rivals}
        calls = (self._result(draw.prompt, samples[i], samples[j], sampler) for i, j in pairs)
        for (i, j), result in zip(pairs, await together(calls)):
            results[i].append(result)
            results[j].append(None if result is None else 1 - result)
        for i in rivals:
            samples[i] = samples[i].add_parts(parts_of(results[i]))
        return replace(rollout, samples=tuple(samples))

    async def _result(self, prompt: Prompt, first: Sample, second: Sample, sampler: Sampler) -> float | None:
        """The result for the first sample; None if the judge fails, or returns no number from 0 to 1."""
        try:
            result = await sampler.outside(self.judge, prompt, first, second)
            return float(result) if 0 <= result <= 1 else None
        except Exception as error:
            if ends_run(error):
                raise
            return None


def has_rivals(sample: Sample) -> bool:
    """Whether a sample is compared: it is an answer, and its verdict is not unverifiable."""
    return sample.role == "answer" and is_graded(sample)


def parts_of(results: Sequence[float | None]) -> dict[str, float]:
    """The verdict parts of an answer from the results of its pairs; None is a pair without a result."""
    pairs = max(len(results), 1)
    wins = sum(0.5 if result is None else result for result in results)
    return {"wins": round(wins / pairs, 3), "unjudged": sum(result is None for result in results) / pairs}
