"""The CPU reference of torch's `varlen_attn` on CUDA: the pretended GPU runs it in the kernel's place.

It takes the arguments of the operator in torch 2.13, refuses those that the CUDA kernel refuses, and sums in float64.
float32 and float64 are taken as well, for exact laws.
"""

import math
from typing import Any

import torch
from torch import Tensor

MOST_HEAD_DIM = 256
PAGE = 256
"""Pages have a multiple of this many positions (FlashAttention 2; FlashAttention 3 takes others)."""


def forward(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int,
    is_causal: bool = False, scale: float | None = None, window_size: list[int] | None = None,
    enable_gqa: bool = False, seqused_k: Tensor | None = None, block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention of each row's queries to its keys, aligned at the end: output, log-sum-exp (heads first), and seeds."""
    check(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, seqused_k, block_table)
    lengths = cu_seq_q.diff().long()
    totals = (seqused_k if seqused_k is not None else cu_seq_k.diff()).long()  # type: ignore[union-attr]
    out = torch.zeros_like(query)
    exact = query.dtype if query.dtype in (torch.float32, torch.float64) else torch.float32
    lse = torch.full((query.shape[1], len(query)), math.inf, dtype=exact)
    if not len(query) or not int(totals.max()):
        return out, lse, torch.zeros(2, dtype=torch.uint64)
    queries = torch.arange(int(lengths.max()))
    real = queries < lengths[:, None]
    at = (cu_seq_q[:-1, None].long() + queries)[real]
    q = query.new_zeros(*real.shape, *query.shape[1:], dtype=torch.float64)
    q[real] = query[at].double()
    keys, values = (rows_of(x, cu_seq_k, totals, block_table).double() for x in (key, value))
    keys, values = (x.repeat_interleave(query.shape[1] // x.shape[2], 2) for x in (keys, values))
    scores = torch.einsum("rqhd,rkhd->rhqk", q, keys) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(hidden(lengths, totals, window_size)[:, None], -math.inf)
    total = scores.logsumexp(-1)
    weights = (scores - total[..., None]).exp().nan_to_num(0.0)
    out[at] = torch.einsum("rhqk,rkhd->rqhd", weights, values)[real].to(out.dtype)
    lse[:, at] = total.transpose(1, 2)[real].T.to(lse.dtype)
    return out, lse, torch.zeros(2, dtype=torch.uint64)


def backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, cu_seq_q: Tensor,
    cu_seq_k: Tensor, max_q: int, max_k: int, is_causal: bool, rng_state: Tensor, scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and values, from the saved output and log-sum-exp (which may be a merged one)."""
    grads = [torch.zeros_like(x, dtype=torch.float64) for x in (query, key, value)]
    for row in range(len(cu_seq_q) - 1):
        q_at, k_at = (slice(int(cu[row]), int(cu[row + 1])) for cu in (cu_seq_q, cu_seq_k))
        q, k, v, grad, o = (x.double() for x in (query[q_at], key[k_at], value[k_at], grad_out[q_at], out[q_at]))
        if not len(q) or not len(k):
            continue
        grouped, factor = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5 if scale is None else scale
        wide = k.repeat_interleave(grouped, 1)
        unseen = hidden(torch.tensor([len(q)]), torch.tensor([len(k)]), window_size)[0]
        scores = (torch.einsum("qhd,khd->hqk", q, wide) * factor).masked_fill(unseen, -math.inf)
        weights = (scores - lse[:, q_at].double()[..., None]).exp()
        wide_k, wide_v = (x.repeat_interleave(grouped, 1) for x in (k, v))
        inner = torch.einsum("qhd,khd->hqk", grad, wide_v) - (grad * o).sum(-1).T[..., None]
        by_score = weights * inner * factor
        grads[0][q_at] += torch.einsum("hqk,khd->qhd", by_score, wide_k)
        for whole, wide in zip(
            grads[1:], (torch.einsum("hqk,qhd->khd", x, y) for x, y in ((by_score, q), (weights, grad)))
        ):
            whole[k_at] += wide.unflatten(1, (-1, grouped)).sum(2)
    return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype)


def hidden(lengths: Tensor, totals: Tensor, window_size: list[int] | None) -> Tensor:
    """Where a query does not see a key, by row: query i of m is at position n - m + i of the n keys."""
    left, right = window_size or (-1, -1)
    key, query = torch.arange(int(totals.max())), torch.arange(int(lengths.max()))
    distance = key - ((totals - lengths)[:, None] + query)[..., None]
    unseen = (key >= totals[:, None])[:, None].expand_as(distance)
    if left >= 0:
        unseen = unseen | (distance < -left)
    if right >= 0:
        unseen = unseen | (distance > right)
    return unseen


def rows_of(x: Tensor, cu: Tensor | None, totals: Tensor, table: Tensor | None) -> Tensor:
    """The keys or values of all rows, from their pages or packed, to the longest row. Beyond a row's end: any."""
    most = int(totals.max())
    if table is not None:
        return x[table[:, : -(-most // x.shape[1])].long()].flatten(1, 2)[:, :most]
    assert cu is not None
    return x[(cu[:-1, None].long() + torch.arange(most)).clamp(max=len(x) - 1)]


def check(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None, max_q: int, max_k: int, used: Tensor | None,
    table: Tensor | None,
) -> None:  # fmt: skip
    """RuntimeError for arguments that the CUDA kernel refuses, or reads wrongly without a word."""
    rows = len(cu_q) - 1
    rules = {
        "head sizes are multiples of 8, at most 256": q.shape[-1] % 8 == 0 and q.shape[-1] <= MOST_HEAD_DIM,
        "queries, keys and values have one dtype": q.dtype == k.dtype == v.dtype,
        "the last dimension is contiguous": all(x.stride(-1) == 1 for x in (q, k, v)),
        "query heads are a multiple of key heads": q.shape[1] % k.shape[-2] == 0,
        "row ends are int32": all(x.dtype == torch.int32 for x in (cu_q, cu_k, used, table) if x is not None),
        "the last row ends where the queries end": int(cu_q[-1]) == len(q),
        "max_q is at least the longest row": int(cu_q.diff().max()) <= max_q if rows else True,
    }
    if table is None:
        rules |= {
            "packed keys need their row ends": cu_k is not None and len(cu_k) == rows + 1 and int(cu_k[-1]) <= len(k),
            "max_k is at least the longest row": cu_k is None or not rows or int(cu_k.diff().max()) <= max_k,
        }
    else:
        rules |= {
            "a page has a multiple of 256 positions": k.ndim == 4 and k.shape[1] % PAGE == 0,
            "pages need the number of keys of each row": used is not None and len(used) == rows == len(table),
            "max_k is at least the longest row": used is None or not rows or int(used.max()) <= max_k,
            "the table has pages for max_k": max_k <= table.shape[1] * k.shape[1],
            "pages exist": int(table.min()) >= 0 and int(table.max()) < len(k) if table.numel() else True,
        }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise RuntimeError(f"varlen_attn on CUDA refuses this: {'; '.join(broken)}")


KERNELS: dict[str, Any] = {
    "torch_attn._varlen_attn.default": forward,
    "torch_attn._varlen_attn_backward.default": backward,
}
"""Operators that the pretended GPU runs by functions of this file."""
