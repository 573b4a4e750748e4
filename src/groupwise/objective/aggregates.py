"""The share of every token in the step: constants, and the only place where anything is divided by a count.

Each says what it counts: *drawn* samples (an answer left without a token counts) or *live* ones (it does not). Sizes
come in the dtype of the advantage, which they multiply; an empty step has an empty share. An aggregate with
`weighs = "sequences"` gives a sequence a total share that does not grow with its length.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Weighs

SOCKET = "Aggregate"
__all__ = ["budget_mean", "group_mean", "sequence_mean", "sequence_sum", "token_mean"]


def token_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every token of the step weighs the same, so long answers weigh more. DAPO, arXiv:2503.14476, equation 8."""
    return torch.full_like(step.advantage, 1 / max(step.tokens, 1))


@dataclass(frozen=True, slots=True)
class SequenceMean:
    """Every live sequence weighs the same, every token the same within it. GRPO, arXiv:2402.03300, equation 3.

    Where groups have unequally many live members this is not the paper's mean over groups: see `group_mean`.
    """

    name: ClassVar[str] = "sequence_mean"
    weighs: ClassVar[Weighs] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s = step.sequences
        return s.spread(1 / s.size(step.advantage).clamp(min=1)) / max(s.live, 1)


@dataclass(frozen=True, slots=True)
class GroupMean:
    """Every live group weighs the same, in it every live sequence, in that every token. GRPO's equation 3 as it is.

    Where all groups have equally many live members it equals `sequence_mean` to the bit.
    """

    name: ClassVar[str] = "group_mean"
    weighs: ClassVar[Weighs] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s, g = step.sequences, step.groups
        size = s.size(step.advantage)
        members = g.total((size > 0).to(size.dtype))
        # With equal groups members * groups is the number of live sequences, divided by where sequence_mean divides.
        divisor = g.spread(members) * (members > 0).sum()
        return s.spread(1 / size.clamp(min=1) / divisor.clamp(min=1))


sequence_mean = SequenceMean()
group_mean = GroupMean()


def sequence_sum(step: Batch) -> Float[Tensor, " n"]:
    """Every token weighs 1 / samples drawn: the sum over an answer's tokens is its log-prob. RLOO, arXiv:2402.14740."""
    return torch.full_like(step.advantage, 1 / max(step.sequences.count, 1))


def budget_mean(step: Batch) -> Float[Tensor, " n"]:
    """Every token weighs 1 / (samples drawn x generation budget), whatever its sample's length.

    Dr. GRPO, arXiv:2503.20783, and its authors' code. The budget is `limit`, never the width of a batch.
    """
    s = step.sequences
    assert bool((s.spread(step.limit) > 0).all()), "a sample with tokens has a generation budget"
    return s.spread(1 / step.limit.to(step.advantage.dtype).clamp(min=1)) / max(s.count, 1)
