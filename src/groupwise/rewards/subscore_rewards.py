"""Shaping with subscores (named scores), such as a format score, for all answers or for correct ones only."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, NeededMeasure, Shaping, Subscore

__all__ = ["SubscoreReward"]


@dataclass(frozen=True, slots=True)
class SubscoreReward(Shaping):
    """Creates the reward from a named subscore of the verdict; 0 for a verdict without it.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0], subscores={"returned": [1.0, 0.5]})])
    >>> SubscoreReward("returned")(batch.verdict_score, batch).tolist()
    [1.0, 0.5]
    """

    subscore: str

    @property
    def needs(self) -> frozenset[NeededMeasure]:
        return frozenset({Subscore(self.subscore)})

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return b[Subscore(self.subscore)]
