"""`GatedSurrogate`: one surrogate for the tokens that a mask (gate) selects, and another for the other tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Mask, Surrogate, surrogate
from groupwise.objective.surrogate_gates import positive_advantage
from groupwise.objective.surrogates import Clip, Clipped, ReportsClipping

__all__ = ["GatedSurrogate", "nothing"]


@dataclass(frozen=True, slots=True)
class GatedSurrogate(Surrogate):
    """One surrogate, `selected_surrogate`, for the tokens that the mask `gate` selects, and another one for the rest.

    Both surrogates are computed on all tokens, so both must be finite everywhere.
    """

    gate: Mask = positive_advantage
    selected_surrogate: Surrogate = Clip()  # noqa: RUF009
    other_surrogate: Surrogate = Clip()  # noqa: RUF009

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return torch.where(self.gate(b), self.selected_surrogate(b), self.other_surrogate(b))

    def clipped(self, b: Batch) -> Clipped:
        """The tokens that are clipped at the lower, and at the upper bound of the surrogate that applies to them."""
        gate = self.gate(b)
        (low, high), (other_low, other_high) = _clipped(self.selected_surrogate, b), _clipped(self.other_surrogate, b)
        return torch.where(gate, low, other_low), torch.where(gate, high, other_high)


@surrogate
def nothing(b: Batch) -> Float[Tensor, " n"]:
    """A surrogate of 0: its tokens have no gradient, but count in all divisors."""
    return 0 * b.logp


def _clipped(surrogate: Surrogate, b: Batch) -> Clipped:
    if isinstance(surrogate, ReportsClipping):
        return surrogate.clipped(b)
    none = torch.zeros_like(b.advantage, dtype=torch.bool)
    return none, none
