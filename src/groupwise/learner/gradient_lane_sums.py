"""Sums of gradients in lanes: the fixed order in which the gradients of a step's microbatches are added.

Float addition is not associative. With L lanes, each L consecutive microbatches are a round. A round is added pairwise:
0 + 1, 2 + 3, then (0 + 1) + (2 + 3); rounds are added in order. Microbatch i is computed by rank `i mod R`, so the
ranks hold consecutive microbatches and add them first. So the bits depend on the number of lanes, and not on the number
of ranks. Each rank adds its slice of the sums over ranks; slices are gathered once, at the end of the step. With one
lane nothing is moved: gradients add up where backward writes them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.learner.distributed import Ranks
from groupwise.learner.optimizer import Optimizer


def order_of(ranks: Ranks, rank: int, count: int) -> range:
    """The indices of a rank's microbatches among `count` of a step, in the order in which it computes them.

    >>> from groupwise.learner import SingleProcess
    >>> order_of(SingleProcess(lanes=2), 0, 4)
    range(0, 4)
    """
    assert not count % ranks.lanes, "a plan has a multiple of `lanes` microbatches"
    return range(rank, count, ranks.size)


def joined(ranks: Ranks, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The vectors of all microbatches in order, of `sizes` numbers, from the ones of this rank (`parts`)."""
    if ranks.lanes == 1:
        return list(parts)
    orders = [order_of(ranks, rank, len(sizes)) for rank in range(ranks.size)]
    every = ranks.gather(torch.cat(list(parts)), [sum(sizes[i] for i in order) for order in orders])
    order = [i for indices in orders for i in indices]
    by_index = dict(zip(order, every.split([sizes[i] for i in order]), strict=True))
    return [by_index[i] for i in range(len(sizes))]


class LaneSums:
    """The gradients of one step: the sum of finished rounds, and a binary tree over the microbatches of this one.

    Of both it holds this rank's slices.
    """

    def __init__(self, optimizers: Sequence[Optimizer], ranks: Ranks) -> None:
        self.ranks = ranks
        self._masters = [master for optimizer in optimizers for master in optimizer.masters]
        self._reached = torch.zeros(len(self._masters), dtype=torch.int32)
        self._sums: list[tuple[int, list[Tensor]]] = []  # (microbatches of this rank, slices), the larger ones first
        self._rounds: list[Tensor] = []

    def add_microbatch(self) -> None:
        """Move the gradients of a microbatch, and of those that the other ranks computed with it, to the sums.

        A weight without a gradient counts as 0, also where all lanes are on one rank: 0 + -0 is not -0.
        """
        if self.ranks.lanes == 1:
            return
        self._reached += torch.tensor([m.grad is not None for m in self._masters], dtype=torch.int32)
        gradients = [torch.zeros_like(m) if m.grad is None else m.grad for m in self._masters]
        for master in self._masters:
            master.grad = None
        slices = self.ranks.reduce_scatter(gradients)
        count = 1
        while self._sums and self._sums[-1][0] == count:
            _, earlier = self._sums.pop()
            slices, count = _added(earlier, slices), 2 * count
        if count * self.ranks.size == self.ranks.lanes:
            self._rounds = _added(self._rounds, slices) if self._rounds else slices
        else:
            self._sums.append((count, slices))

    def finish(self) -> None:
        """Give each weight its gradient; none if no microbatch of any rank had one."""
        if self.ranks.lanes == 1:
            return
        assert not self._sums, "a step has whole rounds"
        self.ranks.add([self._reached])
        gradients = self.ranks.all_gather(self._rounds, self._masters)
        for master, gradient, reached in zip(self._masters, gradients, self._reached.tolist(), strict=True):
            master.grad = gradient if reached else None


def _added(sums: list[Tensor], slices: Sequence[Tensor]) -> list[Tensor]:
    """The sums after the slices were added to them in place."""
    for total, part in zip(sums, slices, strict=True):
        total.add_(part)
    return sums
