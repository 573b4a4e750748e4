"""Running estimates that advantages use: multipliers of constraints, quantiles of scores, a verifier's error rate."""

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.advantages.bundles import LEVELS, draws_of
from groupwise.data import Batch, Measure, Memory, Outcome, VerdictPart

__all__ = ["Multipliers", "Quantiles", "RejectionRate"]


@dataclass(frozen=True, slots=True)
class Multipliers(Memory):
    """Lagrange multipliers of the constraints `mean score >= floor`: each grows while its mean is below the floor.

    The new value is `clip(multiplier + rate (floor - mean), 0, most)`. The mean is over the verdicts of the iteration
    that have the score. FGRPO, arXiv:2604.08476; the step and the start are our reading.
    """

    floors: tuple[tuple[str, float], ...]
    rate: float = 0.05
    most: float = 5.0
    start: float = 0.0

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset(VerdictPart(name) for name, _ in self.floors)

    def init(self) -> dict[str, float]:
        return {name: self.start for name, _ in self.floors}

    def __call__(self, state: dict[str, float], batch: Batch, stats: Mapping[str, float]) -> dict[str, float]:
        return {name: self._step(state[name], name, floor, batch) for name, floor in self.floors}

    def _step(self, multiplier: float, name: str, floor: float, batch: Batch) -> float:
        has = batch.has(VerdictPart(name))
        if not bool(has.any()):
            return multiplier
        mean = float(batch[VerdictPart(name)][has].mean())
        return min(max(multiplier + self.rate * (floor - mean), 0.0), self.most)


@dataclass(frozen=True, slots=True)
class Quantiles(Memory):
    """Running quantiles (0.05, 0.10, ... 0.95) of the scores of bundles of prompts: one small step per iteration.

    `q += rate (level - share of scores below q)`. The first iteration sets them. RiskPO, arXiv:2510.00911. The authors'
    released code computes them and then does not use them.
    """

    size: int = 5
    rate: float = 0.1

    def init(self) -> list[float]:
        return []

    def __call__(self, state: list[float], batch: Batch, stats: Mapping[str, float]) -> list[float]:
        draws = draws_of(batch, self.size)
        scores = draws.scores(batch.reward)[draws.live]
        if not len(scores):
            return state
        if not state:
            return [float(scores.quantile(level)) for level in LEVELS]
        return [q + self.rate * (level - float((scores < q).double().mean())) for q, level in zip(state, LEVELS)]


@dataclass(frozen=True, slots=True)
class RejectionRate(Memory):
    """Estimates the share of correct answers that the verifier rejects, with a second verifier. arXiv:2510.00915.

    A verdict's part `appealed` is 1 if a second verifier looked at a rejected answer, and `overturned` is 1 if it
    accepted it. The estimate is averaged with the weight `keep`. Estimate and average are our reading.
    """

    start: float = 0.1
    keep: float = 0.9
    most: float = 0.5

    def init(self) -> float:
        return self.start

    def __call__(self, state: float, batch: Batch, stats: Mapping[str, float]) -> float:
        appealed = sum(_part(batch, "appealed"))
        if not appealed:
            return state
        accepted = int((batch.outcome == Outcome.correct).sum())
        missed = (len(batch) - accepted) * sum(_part(batch, "overturned")) / appealed
        rate = missed / max(missed + accepted, 1e-12)
        return min(max(self.keep * state + (1 - self.keep) * rate, 0.0), self.most)


def _part(batch: Batch, name: str) -> list[float]:
    """The values of a named score of the verdicts; empty if no verdict has it."""
    return batch.parts[name].tolist() if name in batch.parts else []
