"""Surrogates of the forward process of a flow policy."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Measure, Surrogate
from groupwise.models import ImplicitError

__all__ = ["ImplicitPair"]


@dataclass(frozen=True, slots=True)
class ImplicitPair(Surrogate):
    """`-scale / beta (r l+ + (1 - r) l-)`, with the advantage as r, the chance that the sample is good.

    l+ is the error of a velocity moved by `beta` from the old one towards the policy's, l- that of one moved as far
    away. Between them, a good sample pulls the policy's velocity to its own, a bad one pushes it away. DiffusionNFT,
    arXiv:2509.16117.
    """

    beta: float = 1.0
    scale: float = 5.0
    model: str = "old"

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.scale > 0):
            raise ValueError(f"{self}\nneeds beta > 0 and scale > 0")

    @property
    def needs(self) -> frozenset[Measure]:
        return frozenset({ImplicitError(self.beta, self.model), ImplicitError(-self.beta, self.model)})

    @property
    def sampled_by(self) -> str:
        """The old velocity is that of the policy which generated the samples."""
        return self.model

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        towards, away = (b[ImplicitError(beta, self.model)] for beta in (self.beta, -self.beta))
        return -self.scale / self.beta * (b.advantage * towards + (1 - b.advantage) * away)
