"""`Routed`: one surrogate for the tokens that a mask (gate) selects, and another for the other tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Mask, Surrogate, surrogate
from groupwise.objective.gates import positive_advantage
from groupwise.objective.surrogates import Clip, Clipped, Clips

__all__ = ["Routed", "nothing"]


@dataclass(frozen=True, slots=True)
class Routed(Surrogate):
    """The surrogate `then` for the tokens that the mask `where` selects, and `otherwise` for all others.

    Both surrogates are computed on all tokens, so both must be finite everywhere.
    """

    where: Mask = positive_advantage
    then: Surrogate = Clip()  # noqa: RUF009
    otherwise: Surrogate = Clip()  # noqa: RUF009

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return torch.where(self.where(b), self.then(b), self.otherwise(b))

    def clipped(self, b: Batch) -> Clipped:
        """The tokens that are clipped at the lower, and at the upper bound of the surrogate that applies to them."""
        gate = self.where(b)
        (low, high), (other_low, other_high) = _clipped(self.then, b), _clipped(self.otherwise, b)
        return torch.where(gate, low, other_low), torch.where(gate, high, other_high)


@surrogate
def nothing(b: Batch) -> Float[Tensor, " n"]:
    """A surrogate of 0: its tokens have no gradient, but count in all divisors."""
    return 0 * b.logp


def _clipped(surrogate: Surrogate, b: Batch) -> Clipped:
    if isinstance(surrogate, Clips):
        return surrogate.clipped(b)
    none = torch.zeros_like(b.advantage, dtype=torch.bool)
    return none, none
