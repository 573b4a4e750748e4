"""Aggregates: each token's constant weight (share) in a step's loss. Only aggregates divide by counts.

The docstrings distinguish *drawn* samples (all) from *live* ones (with at least one token). Sizes have the dtype of the
advantage, which they multiply. An empty step has an empty share. With `equal_weight_unit = "sequences"` a sequence's
total share does not grow with its length, unless `LengthScaledAggregate` asks for it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Aggregate, Batch, EqualWeightUnit, aggregate

__all__ = [
    "budget_mean",
    "episode_mean",
    "group_mean",
    "group_token_mean",
    "sequence_mean",
    "sequence_sum",
    "token_mean",
]


@aggregate
def token_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every token of the step has the same weight, so long answers weigh more. DAPO, arXiv:2503.14476, equation 8."""
    return torch.full_like(step.advantage, 1 / max(step.tokens, 1))


@dataclass(frozen=True, slots=True)
class SequenceMeanAggregate(Aggregate):
    """Every sequence with trained tokens weighs the same, divided over its tokens. GRPO, arXiv:2402.03300, equation 3.

    If groups differ in their number of live members, this is not the paper's mean over groups: see `group_mean`.
    """

    name: ClassVar[str] = "sequence_mean"
    equal_weight_unit: ClassVar[EqualWeightUnit] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s = step.sequences
        return s.spread(1 / s.size(step.advantage).clamp(min=1)) / max(s.live, 1)


@dataclass(frozen=True, slots=True)
class GroupMeanAggregate(Aggregate):
    """The mean over groups of the mean over sequences of the mean over tokens, of trained tokens. GRPO, equation 3.

    If all groups have the same number of live members, it equals `sequence_mean` to the bit.
    """

    name: ClassVar[str] = "group_mean"
    equal_weight_unit: ClassVar[EqualWeightUnit] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s, g = step.sequences, step.groups
        size = s.size(step.advantage)
        members = g.total((size > 0).to(size.dtype))
        # For equal groups, members * groups is the number of live sequences: the same division as in sequence_mean.
        divisor = g.spread(members) * (members > 0).sum()
        return s.spread(1 / size.clamp(min=1) / divisor.clamp(min=1))


sequence_mean = SequenceMeanAggregate()
group_mean = GroupMeanAggregate()


@dataclass(frozen=True, slots=True)
class EpisodeMeanAggregate(Aggregate):
    """Every episode of an agent weighs the same, divided over the trained tokens of all its samples.

    An agent with many calls weighs as much as one with few. Without agents it equals `sequence_mean`.
    """

    name: ClassVar[str] = "episode_mean"
    equal_weight_unit: ClassVar[EqualWeightUnit] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        episodes = step.sequences.then(step.episodes)
        return episodes.spread(1 / episodes.size(step.advantage).clamp(min=1)) / max(episodes.live, 1)


episode_mean = EpisodeMeanAggregate()


@aggregate
def sequence_sum(step: Batch) -> Float[Tensor, " n"]:
    """The sum over an answer's tokens, then the mean over the step's samples. RLOO, arXiv:2402.14740."""
    return torch.full_like(step.advantage, 1 / max(step.sequences.count, 1))


@aggregate
def budget_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every token weighs 1 / (samples in the step x generation budget), whatever its sample's length.

    Dr. GRPO, arXiv:2503.20783, and its authors' code. The budget is `max_tokens`, one number for all batches: neither
    the width of a batch nor the room that a long prompt leaves.
    """
    assert step.max_new_tokens > 0 or not step.tokens, "samples with tokens have a generation budget"
    return torch.full_like(step.advantage, 1 / max(step.max_new_tokens, 1)) / max(step.sequences.count, 1)


@aggregate
def group_token_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every group weighs the same, divided over its tokens. DAPO as printed in its paper; REAL, arXiv:2602.05630.

    Groups without a token count in the divisor: a method that contrasts a group's answers has no term for them.
    """
    g = step.token_groups
    return g.spread(1 / g.size(step.advantage).clamp(min=1)) / max(step.groups.count, 1)
