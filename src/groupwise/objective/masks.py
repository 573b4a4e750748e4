"""Which tokens stay in the loss; the others leave the batch, hence ratios and divisors."""

from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Finish

SOCKET = "Mask"
__all__ = ["complete"]


def complete(b: Batch) -> Bool[Tensor, " n"]:
    """The tokens of answers that ended by themselves. Overlong filtering, DAPO, arXiv:2503.14476, section 3.4.

    An answer that was cut leaves numerator and divisor of the loss; its reward stays in its group's statistics.
    """
    return b.sequences.spread(b.finish == Finish.stop)
