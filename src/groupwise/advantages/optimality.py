"""Advantages as probabilities."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Advantage, Batch

__all__ = ["Optimality"]


@dataclass(frozen=True, slots=True)
class Optimality(Advantage):
    """`clip(x / (2 limit) + 1/2, 0, 1)`: an advantage as the chance that the sample is good. arXiv:2509.16117.

    >>> import torch
    >>> from groupwise.data import pack, rollout_of
    >>> batch = pack([rollout_of([1.0, 0.5, 0.0])])
    >>> Optimality(5.0)(torch.tensor([2.0, 0.0, -9.0]), batch).tolist()
    [0.699999988079071, 0.5, 0.0]
    """

    limit: float = 5.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(
                f"limit is {self.limit}\nuse a number above 0, such as the bound of the advantage before it"
            )

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " s"]:
        return (x / (2 * self.limit) + 0.5).clamp(0, 1)
