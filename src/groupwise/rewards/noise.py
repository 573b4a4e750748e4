"""Shaping for verifiers with known error rates."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Shaping

__all__ = ["Debiased"]


@dataclass(frozen=True, slots=True)
class Debiased(Shaping):
    """`(reward - accepts) / (1 - accepts - rejects)`: unbiased for known rates of false accepts and false rejects.

    `accepts` is the share of wrong answers that the verifier accepts, `rejects` the share of correct ones that it
    rejects. A z-score after it undoes the correction. arXiv:2510.00915, backward correction.

    >>> from groupwise.data import rollout_of, pack
    >>> batch = pack([rollout_of([1.0, 0.0])])
    >>> [round(x, 6) for x in Debiased(accepts=0.1, rejects=0.2)(batch.score, batch).tolist()]
    [1.285714, -0.142857]
    """

    accepts: float = 0.1
    rejects: float = 0.1

    def __post_init__(self) -> None:
        if not (self.accepts >= 0 and self.rejects >= 0 and self.accepts + self.rejects < 1):
            raise ValueError(f"{self}: verifier error rates need accepts >= 0, rejects >= 0 and accepts + rejects < 1")

    def __call__(self, reward: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return (reward - self.accepts) / (1 - self.accepts - self.rejects)
