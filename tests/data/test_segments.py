"""Reductions of `Segments` against loops; rows of a batch under `take`, `keep` and `joined`."""

import torch

from groupwise.data import Batch, Segments, pack, rollout_of

at = torch.tensor([2, 0, 2, 4, 0, 2])  # not in order; 1 and 3 are empty
x_of = torch.tensor([3.0, 1.0, 7.0, 5.0, 1.0, -4.0], dtype=torch.float64)


def test_reductions_equal_loops() -> None:
    s = Segments(at, 5)
    parts = [x_of[at == i] for i in range(5)]
    assert s.lengths.tolist() == [2, 0, 3, 0, 1] and s.live == 3
    assert s.total(x_of).tolist() == [float(x.sum()) for x in parts]
    assert s.mean(x_of).tolist() == [float(x.mean()) if len(x) else 0.0 for x in parts]
    assert s.largest(-x_of).tolist() == [float((-x).max()) if len(x) else 0.0 for x in parts]
    assert s.away(x_of).tolist() == [1.0, 0.0, 5.0, 0.0, 0.0, -6.0]
    assert s.prefix(x_of).tolist() == [3.0, 1.0, 10.0, 5.0, 2.0, 6.0]
    z = s.zscore(x_of, ddof=1, eps=0.5)
    assert torch.allclose(z[at == 2], (parts[2] - parts[2].mean()) / (parts[2].std() + 0.5))
    assert z[[1, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    assert s.keep(at != 4).lengths.tolist() == [2, 0, 3, 0, 0], "the last segments are empty, and stay"
    assert s.then(Segments(torch.tensor([0, 0, 1, 1, 0]), 2)).total(x_of).tolist() == [7.0, 6.0]


def described(b: Batch) -> list[tuple[int, float, list[int]]]:
    """Each sample as (length, score, positions of its tokens)."""
    indices = b.index_in_sample.split(b.sequences.lengths.tolist())
    return [(int(n), float(x), p.tolist()) for n, x, p in zip(b.length, b.verdict_score, indices)]


def test_take_keep_and_joined_move_whole_rows() -> None:
    b = pack([rollout_of([1.0, 0.0], lengths=[2, 0]), rollout_of([1.0, 1.0, 0.0], lengths=[1, 3, 2])])
    rows = described(b)
    order = [4, 1, 2]
    taken = b.take(order)
    assert described(taken) == [rows[i] for i in order]
    assert taken.groups.index.tolist() == [1, 0, 1] and taken.rollouts.count == 2
    assert b.take([3]).groups.count == b.take([3]).rollouts.count == 1
    again = Batch.joined([b.take([0, 1]), b.take([2, 3, 4])])
    assert described(again) == rows and again.groups.index.tolist() == b.groups.index.tolist()
    masked = b.keep(b.index_in_sample != 1)
    assert described(masked) == [(n, x, [i for i in p if i != 1]) for n, x, p in rows]
    assert len(masked) == 5 and masked.sequences.lengths.tolist() == [1, 0, 1, 2, 1]
