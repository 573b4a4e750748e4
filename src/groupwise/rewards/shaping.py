"""Shaping: verdicts to one reward per sample. The first shaping creates the reward; each later one changes it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Finish, Logp, Measure, Outcome, Shaping, Usage, VerdictPart

__all__ = ["AddFinished", "AddPart", "AddReadable", "Correctness", "KLInReward", "Overlong", "Score", "TruncatedIs"]


@dataclass(frozen=True, slots=True)
class Correctness(Shaping):
    """Creates the reward: `right` for a correct answer, `wrong` for any other; a score interpolates between them.

    A scored answer is neither correct nor wrong. Its reward is `wrong + score * (right - wrong)`.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> Correctness(wrong=-1.0)(batch.score, batch).tolist()
    [1.0, -1.0]
    """

    right: float = 1.0
    wrong: float = 0.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        reward = torch.full_like(b.score, self.wrong).masked_fill(b.outcome == Outcome.correct, self.right)
        graded = self.wrong + b.score * (self.right - self.wrong)
        return torch.where(b.outcome == Outcome.scored, graded, reward)


@dataclass(frozen=True, slots=True)
class Score(Shaping):
    """Creates the reward from the verdict's score: `offset + scale * score`.

    The score of a verdict without one is 1 if the answer is correct and 0 if not. So `Score()` is the default reward
    for verdicts of both kinds.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.25])])
    >>> Score(scale=2.0, offset=-1.0)(batch.score, batch).tolist()
    [1.0, -0.5]
    """

    scale: float = 1.0
    offset: float = 0.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return self.offset + self.scale * b.score


@dataclass(frozen=True, slots=True)
class AddPart(Shaping):
    """Adds `weight` times a named score of the verdict, such as a format score; 0 if the verdict does not have it.

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
class Overlong(Shaping):
    """Length penalty: subtracts 0 up to `limit - buffer` tokens, then linearly more, up to `factor` at the token limit.

    Soft overlong punishment, DAPO, arXiv:2503.14476, equation 13. `limit` is the sample's budget. `buffer` is in
    tokens, or below 1 a share of `max_tokens`: DAPO's 4096 of 20480 is 0.2. A sample whose long prompt leaves it a
    budget below the buffer loses reward from its first token on.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 1.0, 1.0], lengths=[12, 14, 16], limit=16)])
    >>> Overlong(4)(batch.score, batch).tolist()
    [1.0, 0.5, 0.0]
    """

    buffer: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.buffer > 0 or (self.buffer > 1 and self.buffer % 1):
            raise ValueError(
                f"Overlong(buffer={self.buffer:g}): needs a whole number of tokens, or a share: 0 < buffer < 1\n"
                "write tokens, such as 4096, or a share of the generation budget, such as 0.2"
            )

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        budget = b.max_tokens
        buffer = int(self.buffer) if self.buffer >= 1 else max(1, round(self.buffer * budget))
        if len(b) and buffer > budget:
            raise Usage(
                "the overlong buffer is larger than the generation budget",
                evidence=f"Overlong(buffer={buffer}), sampling.max_tokens = {budget}",
                fix="write the buffer as a share of the generation budget, such as Overlong(0.2)",
            )
        over = (b.length - (b.limit - buffer)).to(reward.dtype) / buffer
        return reward - self.factor * over.clamp(0, 1)


@dataclass(frozen=True, slots=True)
class TruncatedIs(Shaping):
    """Replaces the reward of a truncated answer (it reached the token limit) by `value`. Dr. GRPO's code uses 0."""

    value: float

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return torch.where(b.finish == Finish.length, self.value, reward)


@dataclass(frozen=True, slots=True)
class AddFinished(Shaping):
    """Adds `weight` to the reward of an answer that ended by itself, at an end token or a stop string.

    A weight far below the difference of right and wrong only breaks ties. ReST-GRPO, arXiv:2508.19576.
    """

    weight: float = 1e-3

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward + self.weight * (b.finish == Finish.stop).to(reward.dtype)


@dataclass(frozen=True, slots=True)
class AddReadable(Shaping):
    """Adds `weight` to the reward of each sample, unless its verdict is malformed (no readable final answer).

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> AddReadable(2.0)(batch.score, batch).tolist()
    [3.0, 2.0]
    """

    weight: float = 1.0

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return reward + self.weight * (b.outcome != Outcome.malformed).to(reward.dtype)


@dataclass(frozen=True, slots=True)
class KLInReward(Shaping):
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
