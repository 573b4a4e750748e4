"""Shaping with verdict parts (named scores), such as a format score, for all answers or for correct ones only."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Measure, Shaping, VerdictPart

__all__ = ["PartReward"]


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
