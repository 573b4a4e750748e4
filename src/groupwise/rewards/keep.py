"""Which samples of a family are worth training on. They see outcomes, never a shaped reward."""

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Outcome

SOCKET = "Keep"
__all__ = ["everything", "mixed_outcomes"]


def everything(family: Batch) -> Bool[Tensor, " s"]:
    """Every sample."""
    return torch.ones_like(family.outcome, dtype=torch.bool)


def mixed_outcomes(family: Batch) -> Bool[Tensor, " s"]:
    """The whole family if some of its known answers are correct and some are not, else none of it.

    Dynamic sampling, DAPO, arXiv:2503.14476, equation 11. Unverifiable answers are not known, malformed ones are wrong.

    >>> from groupwise.data import family_of, pack
    >>> [mixed_outcomes(pack([family_of(scores)])).tolist() for scores in ([1.0, 0.0], [1.0, 1.0])]
    [[True, True], [False, False]]
    """
    correct = int((family.outcome == Outcome.correct).sum())
    known = int((family.outcome != Outcome.unverifiable).sum())
    return torch.full_like(family.outcome, 0 < correct < known, dtype=torch.bool)
