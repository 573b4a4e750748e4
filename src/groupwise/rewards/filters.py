"""Filters: select the samples of a rollout to train on. They run before shaping and read outcomes, not rewards."""

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.data import Batch, Outcome, Usage

SOCKET = "Filter"
__all__ = ["everything", "mixed_groups", "mixed_outcomes", "mixed_scores"]


def everything(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects every sample."""
    return torch.ones_like(rollout.outcome, dtype=torch.bool)


def mixed_outcomes(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects the whole rollout if some of its verified answers are correct and some are not, else no sample.

    Dynamic sampling, DAPO, arXiv:2503.14476, equation 11. Unverifiable answers are ignored; malformed ones are wrong.

    >>> from groupwise.data import rollout_of, pack
    >>> [mixed_outcomes(pack([rollout_of(scores)])).tolist() for scores in ([1.0, 0.0], [1.0, 1.0])]
    [[True, True], [False, False]]
    """
    _refuse_scores(rollout, "mixed_outcomes")
    correct = int((rollout.outcome == Outcome.correct).sum())
    verified = int((rollout.outcome != Outcome.unverifiable).sum())
    return torch.full_like(rollout.outcome, 0 < correct < verified, dtype=torch.bool)


def mixed_scores(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects the whole rollout if the scores of its verified answers differ, else no sample. For scored answers.

    >>> from groupwise.data import rollout_of, pack
    >>> [mixed_scores(pack([rollout_of(scores)])).tolist() for scores in ([0.5, 0.25], [0.5, 0.5])]
    [[True, True], [False, False]]
    """
    scores = rollout.score[rollout.outcome != Outcome.unverifiable]
    return torch.full_like(rollout.outcome, len(scores.unique()) > 1, dtype=torch.bool)


def mixed_groups(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects the groups of a rollout in which some verified answers are correct and some are not.

    >>> from groupwise.data import rollout_of, pack
    >>> mixed_groups(pack([rollout_of([1.0, 0.0]), rollout_of([1.0, 1.0])])).tolist()
    [True, True, False, False]
    """
    _refuse_scores(rollout, "mixed_groups")
    g = rollout.groups
    correct = g.total((rollout.outcome == Outcome.correct).double())
    verified = g.total((rollout.outcome != Outcome.unverifiable).double())
    return g.spread((correct > 0) & (correct < verified))


def _refuse_scores(rollout: Batch, name: str) -> None:
    if bool((rollout.outcome == Outcome.scored).any()):
        raise Usage(
            f"{name} needs correct and wrong answers, and the verifier gives scores",
            fix="set threshold, from which on a score is correct, such as --threshold 1.0; or use the scores:\n"
            """--method.filter mixed_scores --method.shaping '["Score"]'""",
        )
