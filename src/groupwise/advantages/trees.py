"""Credit from prefixes that several answers of a group share: mean rewards on the tree of these prefixes."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from groupwise.data import Batch, Credit, Segments

__all__ = ["BranchDifference"]


@dataclass(frozen=True, slots=True)
class BranchDifference(Credit):
    """`x + V(prefix with the token) - V(prefix)`; V is the mean reward x of the group's answers with that prefix.

    The difference is 0 except where answers part. TEMPO, arXiv:2509.18314; that both terms weigh the same is our
    reading. With `first = False` the first token, where most answers part, has no difference.
    """

    first: bool = True

    def __call__(self, x: Float[Tensor, " s"], b: Batch) -> Float[Tensor, " n"]:
        prefixes = _prefixes(b)
        length = b.length + 1  # an answer of n tokens has n + 1 prefixes
        value = prefixes.spread(prefixes.mean(x.repeat_interleave(length)))
        start = b.sequences.spread(length.cumsum(0) - length)
        before = start + b.place
        difference = value[before + 1] - value[before]
        if not self.first:
            difference = difference.masked_fill(b.place == 0, 0.0)
        return b.sequences.spread(x) + difference


def _prefixes(b: Batch) -> Segments:
    """All prefixes of all answers, in order, from the empty one. Equal prefixes within a group are one segment."""
    numbers: dict[tuple[int, int], int] = {}
    index: list[int] = []
    for sample, node in zip(b.samples, b.groups.index.tolist()):
        index.append(node)
        for token in sample.tokens:
            node = numbers.setdefault((node, token), b.groups.count + len(numbers))
            index.append(node)
    return Segments(torch.tensor(index, dtype=torch.long, device=b.place.device), b.groups.count + len(numbers))
