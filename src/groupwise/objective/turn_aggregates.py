"""Aggregates of conversations: every turn of the model has the same weight."""

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Segments

SOCKET = "Aggregate"
__all__ = ["turn_mean"]


def turn_mean(step: Batch) -> Float[Tensor, " n"]:
    """The mean over turns of the model of the mean over each turn's trained tokens.

    Selective Rollout, 2026. In an answer of one turn it equals `sequence_mean`.
    """
    rows: list[list[int]] = []
    count = 0
    for sample in step.samples:
        turn = [-1] * len(sample.tokens)
        for first, last in sample.turns:
            turn[first:last] = [count] * (last - first)
            count += 1
        rows.append(turn)
    turns = Segments(step.at_trained(rows, torch.long), count)
    return turns.spread(1 / turns.size(step.advantage).clamp(min=1)) / max(turns.live, 1)
