"""Shaping with verdict parts (named scores), such as a format score, for all answers or for correct ones only."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Measure, Outcome, Shaping, VerdictPart

__all__ = ["AddCalibration", "AddPartIfCorrect", "AddTrustedPart", "AddWeightedMean", "PartReward"]


@dataclass(frozen=True, slots=True)
class AddPartIfCorrect(Shaping):
    """Adds `weight` times a named score of the verdict, to correct answers only. P-GRPO, arXiv:2508.05170.

    A wrong answer cannot gain by a good score of the part, so the part cannot be hacked without the task.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], parts={"style": [0.5, 1.0]})])
    >>> AddPartIfCorrect("style")(batch.score, batch).tolist()
    [1.5, 0.0]
    """

    part: str
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.part)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        part = torch.where(b.outcome == Outcome.correct, b[VerdictPart(self.part)], 0.0)
        return reward + self.weight * part


@dataclass(frozen=True, slots=True)
class AddWeightedMean(Shaping):
    """Adds the weighted mean of several named scores of the verdict; missing ones are left out. arXiv:2503.21819.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([0.0, 0.0], parts={"safe": [1.0, 0.0], "useful": [0.5, 1.0]})])
    >>> AddWeightedMean((("safe", 3.0), ("useful", 1.0)))(batch.score, batch).tolist()
    [0.875, 0.25]
    """

    weights: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if not any(weight > 0 for _, weight in self.weights) or any(weight < 0 for _, weight in self.weights):
            raise ValueError(f"{self}: needs every weight >= 0, and at least one above 0")

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset(VerdictPart(name) for name, _ in self.weights)

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        total, weight = torch.zeros_like(reward), torch.zeros_like(reward)
        for name, w in self.weights:
            total = total + w * b[VerdictPart(name)]
            weight = weight + w * b.has(VerdictPart(name))
        return reward + total / weight.masked_fill(weight == 0, 1.0)


@dataclass(frozen=True, slots=True)
class AddTrustedPart(Shaping):
    """Adds `alpha * trust` times a verdict part; trust is below 1 in groups where the part is higher for wrong answers.

    Trust is `exp(mean over right - mean over wrong)`, at most 1, and 1 without both kinds. An answer counts as right if
    its reward, before this part is added, is at least `threshold`. Trust-GRPO, arXiv:2505.17018.
    """

    part: str
    alpha: float = 0.3
    threshold: float = 0.5

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.part)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        g, part, right = b.groups, b[VerdictPart(self.part)], reward >= self.threshold
        n_right, n_wrong = g.total(right.double()), g.total((~right).double())
        mean_right = g.total(torch.where(right, part, 0.0)) / n_right.clamp(min=1)
        mean_wrong = g.total(torch.where(right, 0.0, part)) / n_wrong.clamp(min=1)
        trust = torch.where((n_right > 0) & (n_wrong > 0), (mean_right - mean_wrong).clamp(max=0).exp(), 1.0)
        return reward + self.alpha * g.spread(trust) * part


@dataclass(frozen=True, slots=True)
class AddCalibration(Shaping):
    """Adds a Brier score, `weight (1 - (p - correct)^2)`, for the confidence p that the answer states. ReFIne.

    An answer without a confidence loses: it counts as p = 1/2, less 1.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], parts={"confidence": [0.9, 0.9]})])
    >>> [round(x, 4) for x in AddCalibration("confidence")(batch.score, batch).tolist()]
    [1.2475, 0.0475]
    """

    part: str
    weight: float = 0.25

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.part)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        stated = b.has(VerdictPart(self.part))
        p = torch.where(stated, b[VerdictPart(self.part)].clamp(0, 1), 0.5)
        correct = (b.outcome == Outcome.correct).double()
        return reward + self.weight * (1 - (p - correct) ** 2 - (~stated).double())


@dataclass(frozen=True, slots=True)
class PartReward(Shaping):
    """Creates the reward from a named part of the verdict; 0 for a verdict without the part.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], parts={"returned": [1.0, 0.5]})])
    >>> PartReward("returned")(batch.score, batch).tolist()
    [1.0, 0.5]
    """

    part: str

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({VerdictPart(self.part)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return b[VerdictPart(self.part)]
