"""Sums of gradients over ranks that are threads: the bits of a tree, and the bytes that a rank sends."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import TypeVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from groupwise.learner import AdamW, Ranks, ReplicatedRanks, SingleProcess
from groupwise.learner.distributed import BUCKET, buckets
from groupwise.learner.gradient_lane_sums import LaneSums, order_of
from groupwise.learner.optimizer import Optimizer
from groupwise.learner.rank_pulse import RankPulse

R, T = TypeVar("R"), TypeVar("T")
DEADLINE = 60.0
SHAPES = ((7, 5), (1,), (), (0,), (3, 4), (2,))
SIZES = [(lanes, size) for lanes in (2, 4, 8) for size in (1, 2, 4, 8) if size <= lanes]
LACKING = 1
"""The tensor that has a gradient in the first microbatch only."""


class ThreadedRank(ReplicatedRanks):
    """A rank in a thread. `mail` holds the tensors on their way from one rank to another.

    `sent` counts bytes by dtype.
    """

    def __init__(self, rank: int, size: int, lanes: int, mail: dict[tuple[int, int], "Queue[Tensor]"]) -> None:
        self.rank, self.size, self.lanes, self.mail = rank, size, lanes, mail
        self.pulse, self.sent = RankPulse(dist.HashStore(), rank, size, DEADLINE), Counter[torch.dtype]()

    def exchange(self, mine: Tensor, other: Tensor, hop: int, what: str) -> Tensor:
        partner = self.rank ^ hop
        self.sent[mine.dtype] += mine.nbytes
        self.mail[self.rank, partner].put(mine.clone())
        return other.copy_(self.mail[partner, self.rank].get(timeout=DEADLINE))


def threaded(size: int, lanes: int) -> list[ThreadedRank]:
    mail: dict[tuple[int, int], Queue[Tensor]] = {(a, b): Queue() for a in range(size) for b in range(size)}
    return [ThreadedRank(rank, size, lanes, mail) for rank in range(size)]


def microbatches(count: int, dtypes: Sequence[torch.dtype]) -> list[list[Tensor | None]]:
    """Gradients of each microbatch, of very different magnitudes, so that a sum shows its order."""
    draws = torch.Generator().manual_seed(count)
    gradients: list[list[Tensor | None]] = []
    for i in range(count):
        gradients.append([])
        for k, (shape, dtype) in enumerate(zip(SHAPES, dtypes, strict=True)):
            numbers = torch.randn(shape, generator=draws) * 10.0 ** torch.randint(-6, 6, shape, generator=draws)
            gradients[-1].append(None if k == LACKING and i else numbers.to(dtype))
    return gradients


def summed(ranks: Ranks, gradients: Sequence[Sequence[Tensor | None]], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """The gradients of a step on one rank."""
    weights = [torch.ones(shape, dtype=dtype, requires_grad=True) for shape, dtype in zip(SHAPES, dtypes)]
    sums = LaneSums([Optimizer(weights, AdamW())], ranks)
    for i in order_of(ranks, ranks.rank, len(gradients)):
        for weight, gradient in zip(weights, gradients[i], strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        sums.add_microbatch()
    sums.finish()
    return [x.grad for x in weights if x.grad is not None]


def tree(arrays: Sequence[np.ndarray], lanes: int) -> np.ndarray:
    """Rounds of `lanes` arrays, each added pairwise, and then in order: loops in NumPy."""
    rounds = []
    for start in range(0, len(arrays), lanes):
        level = list(arrays[start : start + lanes])
        while len(level) > 1:
            level = [left + right for left, right in zip(level[0::2], level[1::2])]
        rounds.append(level[0])
    total = rounds[0]
    for each in rounds[1:]:
        total = total + each
    return total


def on_threads(ranks: Sequence[R], job: Callable[[R], T]) -> list[T]:
    """The results of a job on each rank."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return [future.result(DEADLINE) for future in [threads.submit(job, rank) for rank in ranks]]


@pytest.mark.parametrize("rounds", (1, 3))
@pytest.mark.parametrize(("lanes", "size"), SIZES)
def test_every_rank_has_the_bits_of_a_tree_in_numpy(lanes: int, size: int, rounds: int) -> None:
    dtypes = [torch.float32] * 4 + [torch.float64] * 2
    gradients = microbatches(lanes * rounds, dtypes)
    zeros = [np.zeros(shape, dtype=np.float32) for shape in SHAPES]
    columns = [[zero if x is None else x.numpy() for x in column] for zero, column in zip(zeros, zip(*gradients))]
    wanted = [torch.from_numpy(np.asarray(tree(column, lanes))) for column in columns]
    ranks = [SingleProcess(lanes)] if size == 1 else threaded(size, lanes)
    for each in on_threads(ranks, lambda rank: summed(rank, gradients, dtypes)):
        assert [x.dtype for x in each] == dtypes
        assert all(torch.equal(x, y) for x, y in zip(each, wanted, strict=True))
    assert lanes * rounds == 2 or not np.array_equal(sum(columns[0]), wanted[0].numpy())  # the order shows


@pytest.mark.parametrize(("size", "rounds"), ((2, 1), (4, 2), (8, 8)))
def test_a_rank_sends_its_halves_and_gathers_once(size: int, rounds: int) -> None:
    """Each microbatch costs `1 - 1/R` gradients, and the end of the step the same once more; 7.875 with 8 ranks and 8
    rounds. Whole tensors in each round of a butterfly would cost `rounds * log2(R)`, 24.
    """
    weights = [torch.ones(64, 40, requires_grad=True), torch.ones(24, requires_grad=True)]
    size_bytes = sum(x.nbytes for x in weights)
    ranks = threaded(size, size)

    def step(rank: ThreadedRank) -> None:
        masters = [x.detach().clone().requires_grad_() for x in weights]
        sums = LaneSums([Optimizer(masters, AdamW())], rank)
        for _ in range(rounds):
            for master in masters:
                master.grad = torch.ones_like(master)
            sums.add_microbatch()
        sums.finish()
        assert all(torch.equal(x.grad, torch.full_like(x, size * rounds)) for x in masters if x.grad is not None)

    on_threads(ranks, step)
    sent = [rank.sent[torch.float32] / size_bytes for rank in ranks]
    assert sent == [(rounds + 1) * (1 - 1 / size)] * size


def test_a_bucket_holds_tensors_of_one_dtype_and_a_large_tensor_is_alone() -> None:
    large, small, double = torch.empty(BUCKET // 4 + 1), torch.empty(3), torch.empty(3, dtype=torch.float64)
    found = buckets([small, small, large, small, double, double])
    assert [[x.numel() for x in bucket] for bucket in found] == [[3, 3], [BUCKET // 4 + 1], [3], [3, 3]]
    assert buckets([]) == []
