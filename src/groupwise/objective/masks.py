"""Masks: choose the tokens that stay in the loss. The others are removed from all ratios and divisors, too."""

from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Finish, mask

__all__ = ["complete"]


@mask
def complete(b: Batch) -> Bool[Tensor, " n"]:
    """Keeps the tokens of answers that end at an end token or stop string. Overlong filtering, DAPO, arXiv:2503.14476.

    Section 3.4 of DAPO. A truncated answer leaves the numerator and the divisor of the loss, and the statistics over
    tokens, such as whitening. Its reward stays in its group's statistics.
    """
    return b.sequences.spread(b.finish == Finish.stop)
