"""Judges of pairs: which of two answers to a prompt is better."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from groupwise.data import Prompt, Sample

__all__ = ["HigherScore", "PairJudge"]


@runtime_checkable
class PairJudge(Protocol):
    """Compares two answers that have verdicts: 1 if the first is better, 0 if the second is, 1/2 for a tie."""

    __slots__ = ()

    @abstractmethod
    async def __call__(self, prompt: Prompt, first: Sample, second: Sample, /) -> float: ...


@dataclass(frozen=True, slots=True)
class HigherScore(PairJudge):
    """Prefers the answer whose verdict has the higher score, or verdict part `part`.

    A difference of at most `margin` is a tie: a judge does not see it.
    """

    part: str = ""
    margin: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < float("inf"):
            raise ValueError(f"{self}\nneeds margin >= 0")

    async def __call__(self, prompt: Prompt, first: Sample, second: Sample) -> float:
        gap = self._score(first) - self._score(second)
        return 0.5 if abs(gap) <= self.margin else float(gap > 0)

    def _score(self, sample: Sample) -> float:
        if sample.verdict is None:
            return 0.0
        return sample.verdict.parts.get(self.part, 0.0) if self.part else sample.verdict.value
