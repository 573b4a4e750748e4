"""Which samples of a rollout are worth training on. They see outcomes, never a shaped reward."""

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Outcome

SOCKET = "Filter"
__all__ = ["everything", "mixed_outcomes"]


def everything(rollout: Batch) -> Bool[Tensor, " s"]:
    """Every sample."""
    return torch.ones_like(rollout.outcome, dtype=torch.bool)


def mixed_outcomes(rollout: Batch) -> Bool[Tensor, " s"]:
    """The whole rollout if some of its known answers are correct and some are not, else none of it.

    Dynamic sampling, DAPO, arXiv:2503.14476, equation 11. Unverifiable answers are not known, malformed ones are wrong.

    >>> from groupwise.data import rollout_of, pack
    >>> [mixed_outcomes(pack([rollout_of(scores)])).tolist() for scores in ([1.0, 0.0], [1.0, 1.0])]
    [[True, True], [False, False]]
    """
    correct = int((rollout.outcome == Outcome.correct).sum())
    known = int((rollout.outcome != Outcome.unverifiable).sum())
    return torch.full_like(rollout.outcome, 0 < correct < known, dtype=torch.bool)
