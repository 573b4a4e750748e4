"""Filters: select the samples of a rollout to train on. They run before shaping and read outcomes, not rewards."""

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
    """The whole rollout if some of its verified answers are correct and some are not, else no sample.

    Dynamic sampling, DAPO, arXiv:2503.14476, equation 11. Unverifiable answers are ignored; malformed ones are wrong.

    >>> from groupwise.data import rollout_of, pack
    >>> [mixed_outcomes(pack([rollout_of(scores)])).tolist() for scores in ([1.0, 0.0], [1.0, 1.0])]
    [[True, True], [False, False]]
    """
    correct = int((rollout.outcome == Outcome.correct).sum())
    verified = int((rollout.outcome != Outcome.unverifiable).sum())
    return torch.full_like(rollout.outcome, 0 < correct < verified, dtype=torch.bool)
