"""`PassesChecks`: a reward for correct answers that also pass checks of their reasoning."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.data import Batch, Finish, Ids, Measure, Outcome, Shaping, VerdictPart

__all__ = ["PassesChecks"]


@dataclass(frozen=True, slots=True)
class PassesChecks(Shaping):
    """Creates the reward: 1 (plus `length / max_tokens` with `longer`) for an answer that passes all checks, else 0.

    The checks: it is correct, it is complete, its verdict part `consistent` is at least 1/2 (the reasoning leads to the
    answer), and at most a share `repeated` of its n-grams of tokens occurred before. For `Preference`: of two answers
    that pass, the longer one is preferred. VerIPO, arXiv:2505.19000; the rules for repetition and length are our
    reading.
    """

    consistent: str = ""
    repeated: float = 0.5
    n: int = 4
    longer: bool = True

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 <= self.repeated <= 1:
            raise ValueError(f"{self}: needs n >= 1 and 0 <= repeated <= 1")

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.consistent)}) if self.consistent else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        bonus = b.length.to(reward.dtype) / max(b.max_tokens, 1) if self.longer else torch.zeros_like(reward)
        return torch.where(self._passes(b), 1 + bonus, 0.0)

    def _passes(self, b: Batch) -> Bool[Tensor, " s"]:
        shares = [repetition(s.tokens, self.n) for s in b.samples]
        original = torch.tensor(shares, dtype=torch.float64, device=b.score.device) <= self.repeated
        passes = (b.outcome == Outcome.correct) & (b.finish != Finish.length) & original
        return passes & (b[VerdictPart(self.consistent)] >= 0.5) if self.consistent else passes


def repetition(tokens: Ids, n: int) -> float:
    """The share of n-grams that occurred before in the same answer; 0 without an n-gram.

    >>> repetition((1, 2, 1, 2, 1, 2), 2), repetition((1, 2, 3), 2)
    (0.6, 0.0)
    """
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
