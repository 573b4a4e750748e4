"""Filters: select the samples of a rollout to train on. They run before shaping and read verdicts, not rewards."""

import torch
from jaxtyping import Bool
from torch import Tensor

from groupwise.core import Usage
from groupwise.data import Batch, Outcome, filter

__all__ = ["correct_only", "everything", "mixed_groups", "mixed_outcomes", "mixed_scores", "not_all_correct"]


@filter
def everything(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects every sample."""
    return torch.ones_like(rollout.outcome, dtype=torch.bool)


vars(everything)["scope"] = "iteration"  # one call for all rollouts


@filter
def mixed_outcomes(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects all samples of a prompt if some of its answers are correct and some are not, else none of them.

    Dynamic sampling, DAPO, arXiv:2503.14476, equation 11. Unverifiable answers are ignored; malformed ones are wrong.
    Scored answers have no outcome: with one of them in the rollout it is `mixed_scores`, as in DAPO's code.

    >>> from groupwise.data import rollout_of, pack
    >>> [mixed_outcomes(pack([rollout_of(scores)])).tolist() for scores in ([1.0, 0.0], [1.0, 1.0])]
    [[True, True], [False, False]]
    """
    if bool((rollout.outcome == Outcome.scored).any()):
        return mixed_scores(rollout)
    correct = int((rollout.outcome == Outcome.correct).sum())
    verified = int((rollout.outcome != Outcome.unverifiable).sum())
    return torch.full_like(rollout.outcome, 0 < correct < verified, dtype=torch.bool)


@filter
def not_all_correct(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects all samples of a prompt if at least one answer is wrong or malformed, else none. NGRPO, arXiv:2509.18851.

    >>> from groupwise.data import rollout_of, pack
    >>> [not_all_correct(pack([rollout_of(scores)])).tolist() for scores in ([0.0, 0.0], [1.0, 1.0])]
    [[True, True], [False, False]]
    """
    _refuse_scores(rollout, "not_all_correct")
    correct = int((rollout.outcome == Outcome.correct).sum())
    verified = int((rollout.outcome != Outcome.unverifiable).sum())
    return torch.full_like(rollout.outcome, correct < verified, dtype=torch.bool)


@filter
def mixed_scores(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects all samples of a prompt if the scores of its answers differ, else none. For scores without a threshold.

    >>> from groupwise.data import rollout_of, pack
    >>> [mixed_scores(pack([rollout_of(scores)])).tolist() for scores in ([0.5, 0.25], [0.5, 0.5])]
    [[True, True], [False, False]]
    """
    scores = rollout.verdict_score[rollout.outcome != Outcome.unverifiable]
    return torch.full_like(rollout.outcome, len(scores.unique()) > 1, dtype=torch.bool)


@filter
def correct_only(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects the correct answers: positive-only training, such as POPO, arXiv:2605.06650.

    >>> from groupwise.data import rollout_of, pack
    >>> correct_only(pack([rollout_of([1.0, 0.0])])).tolist()
    [True, False]
    """
    _refuse_scores(rollout, "correct_only")
    return rollout.outcome == Outcome.correct


@filter
def mixed_groups(rollout: Batch) -> Bool[Tensor, " s"]:
    """Selects the groups that have correct and wrong answers, where a prompt has several groups.

    A group with a scored answer is selected if its scores differ.

    >>> from groupwise.data import rollout_of, pack
    >>> mixed_groups(pack([rollout_of([1.0, 0.0]), rollout_of([1.0, 1.0])])).tolist()
    [True, True, False, False]
    """
    g, outcome = rollout.groups, rollout.outcome
    correct = g.total((outcome == Outcome.correct).double())
    verified = g.total((outcome != Outcome.unverifiable).double())
    scored = g.total((outcome == Outcome.scored).double()) > 0
    # An unverifiable answer is neither the highest nor the lowest of its group.
    high, low = (rollout.verdict_score.masked_fill(outcome == Outcome.unverifiable, x) for x in (-torch.inf, torch.inf))
    return g.spread(torch.where(scored, g.largest(high) > -g.largest(-low), (correct > 0) & (correct < verified)))


def _refuse_scores(rollout: Batch, name: str) -> None:
    if bool((rollout.outcome == Outcome.scored).any()):
        raise Usage(
            f"{name} needs correct and wrong answers, and the verifier gives scores",
            fix="set the smallest correct score, such as --correct_threshold 1.0; or select the groups\n"
            "whose scores differ: --method.filter mixed_scores",
        )
