"""Aggregates of conversations: every turn of the model has the same weight."""

from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, aggregate

__all__ = ["turn_mean"]


@aggregate
def turn_mean(step: Batch) -> Float[Tensor, " n"]:
    """The mean over turns of the model of the mean over each turn's trained tokens.

    Selective Rollout, 2026. In an answer of one turn it equals `sequence_mean`.
    """
    turns = step.turns
    return turns.spread(1 / turns.size(step.advantage).clamp(min=1)) / max(turns.live, 1)
