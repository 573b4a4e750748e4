"""Masks: the tokens that stay in the loss. The others leave the batch, and so all ratios and divisors."""

from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Finish

SOCKET = "Mask"
__all__ = ["complete"]


def complete(b: Batch) -> Bool[Tensor, " n"]:
    """The tokens of answers that were not truncated. Overlong filtering, DAPO, arXiv:2503.14476, section 3.4.

    A truncated answer leaves the numerator and the divisor of the loss. Its reward stays in its group's statistics.
    """
    return b.sequences.spread(b.finish == Finish.stop)
