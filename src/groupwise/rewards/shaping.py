"""Shaping: verdicts to one reward per sample. The first part creates the reward; each later part changes it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Finish, Logp, Measure, Usage, VerdictPart

SOCKET = "Shaping"
__all__ = ["AddPart", "Correctness", "KLInReward", "Overlong", "TruncatedIs"]


@dataclass(frozen=True, slots=True)
class Correctness:
    """`wrong + (right - wrong) * score`: `right` for a score of 1, `wrong` for 0. It creates the reward."""

    right: float = 1.0
    wrong: float = 0.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return self.wrong + (self.right - self.wrong) * b.score


@dataclass(frozen=True, slots=True)
class AddPart:
    """Adds `weight * part` of the verdicts to the reward, such as a format score; 0 for a verdict without the part.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], parts={"format": [0.0, 1.0]})])
    >>> AddPart("format", 0.5)(batch.score, batch).tolist()
    [1.0, 0.5]
    """

    part: str
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.part)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward + self.weight * b[VerdictPart(self.part)]


@dataclass(frozen=True, slots=True)
class Overlong:
    """Subtracts 0 up to `limit - buffer` tokens, then linearly more, up to `factor` at the limit and beyond.

    Soft overlong punishment, DAPO, arXiv:2503.14476, equation 13. `limit` is the generation budget. A sample whose long
    prompt leaves it a budget below `buffer` loses reward from its first token on.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 1.0, 1.0], lengths=[12, 14, 16], limit=16)])
    >>> Overlong(4)(batch.score, batch).tolist()
    [1.0, 0.5, 0.0]
    """

    buffer: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise ValueError(f"Overlong(buffer={self.buffer}): the buffer must be at least one token")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        if len(b) and self.buffer > (budget := int(b.limit.max())):
            raise Usage(
                "the overlong buffer is larger than the generation budget",
                evidence=f"Overlong(buffer={self.buffer}), sampling.max_tokens = {budget}",
                fix="make the buffer a fraction of max_tokens; DAPO's is a fifth of it",
            )
        over = (b.length - (b.limit - self.buffer)).to(reward.dtype) / self.buffer
        return reward - self.factor * over.clamp(0, 1)


@dataclass(frozen=True, slots=True)
class TruncatedIs:
    """Replaces the reward of an answer that reached the token limit by `value`. Dr. GRPO's code, with 0."""

    value: float

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return torch.where(b.finish == Finish.length, self.value, reward)


@dataclass(frozen=True, slots=True)
class KLInReward:
    """Subtracts `coefficient * sum over tokens of (log pi_old - log reference)`. RLOO, arXiv:2402.14740, section 2.

    k1 in the reward has the exact gradient, through the policy gradient. A coefficient of 0 needs no reference.
    """

    coefficient: float
    model: str = "reference"

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({Logp("policy"), Logp(self.model)}) if self.coefficient else frozenset()

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        if self.coefficient == 0:
            return reward
        gap = (b.logp_old - b[Logp(self.model)]).to(reward.dtype)
        return reward - self.coefficient * b.sequences.total(gap)
