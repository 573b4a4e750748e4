"""Lanes: the microbatches of a step in a fixed number of sums, which are added in a fixed tree.

Float addition is not associative. Microbatch i belongs to lane `i mod lanes`, a lane adds its gradients in order, and
lanes are added pairwise: 0 + 1, 2 + 3, then (0 + 1) + (2 + 3). So the bits depend on the number of lanes, and not on
the number of ranks that compute them. With one lane nothing is moved: gradients add up where backward writes them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.learner.optimizer import Optimizer
from groupwise.learner.ranks import Ranks


def lanes_of(ranks: Ranks, rank: int, count: int) -> list[range]:
    """The indices of a rank's microbatches among `count` of a step, lane by lane.

    >>> from groupwise.learner import Alone
    >>> lanes_of(Alone(lanes=2), 0, 4)
    [range(0, 4, 2), range(1, 4, 2)]
    """
    assert not count % ranks.lanes, "a plan has a multiple of `lanes` microbatches"
    each = ranks.lanes // ranks.size
    return [range(lane, count, ranks.lanes) for lane in range(rank * each, (rank + 1) * each)]


def order_of(ranks: Ranks, rank: int, count: int) -> list[int]:
    """The indices of a rank's microbatches among `count`, in the order in which it computes them."""
    return [i for lane in lanes_of(ranks, rank, count) for i in lane]


def joined(ranks: Ranks, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The vectors of all microbatches in order, of `sizes` numbers, from those that this rank computed (`parts`)."""
    if ranks.lanes == 1:
        return list(parts)
    orders = [order_of(ranks, rank, len(sizes)) for rank in range(ranks.size)]
    every = ranks.gather(torch.cat(list(parts)), [sum(sizes[i] for i in order) for order in orders])
    order = [i for indices in orders for i in indices]
    by_index = dict(zip(order, every.split([sizes[i] for i in order]), strict=True))
    return [by_index[i] for i in range(len(sizes))]


class LaneSums:
    """The gradients of one step: those of each finished lane, added to a binary tree over lanes and ranks."""

    def __init__(self, optimizers: Sequence[Optimizer], ranks: Ranks) -> None:
        self.ranks = ranks
        self._masters = [master for optimizer in optimizers for master in optimizer.masters]
        self._reached = torch.zeros(len(self._masters), dtype=torch.int32)
        self._sums: list[tuple[int, list[Tensor]]] = []  # (height in the tree, gradients), the higher ones first

    def add_lane(self) -> None:
        """Move the accumulated gradients of a finished lane to the tree.

        A weight without a gradient counts as 0, also where all lanes are on one rank: 0 + -0 is not -0.
        """
        if self.ranks.lanes == 1:
            return
        self._reached += torch.tensor([m.grad is not None for m in self._masters], dtype=torch.int32)
        gradients = [torch.zeros_like(m) if m.grad is None else m.grad for m in self._masters]
        for master in self._masters:
            master.grad = None
        height = 0
        while self._sums and self._sums[-1][0] == height:
            _, earlier = self._sums.pop()
            for total, gradient in zip(earlier, gradients):
                total.add_(gradient)
            gradients, height = earlier, height + 1
        self._sums.append((height, gradients))

    def finish(self) -> None:
        """Add the sums of the other ranks, and give each weight its gradient; none if no lane of any rank had one."""
        if self.ranks.lanes == 1:
            return
        ((_, gradients),) = self._sums
        self.ranks.add([self._reached, *gradients])
        for master, gradient, reached in zip(self._masters, gradients, self._reached.tolist()):
            master.grad = gradient if reached else None
