"""Attention of packed rows on a GPU by torch's `varlen_attn`: no mask, no padding, and no tensor of scores."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.models.decoder.packed_attention import merge_attention

__all__ = ["varlen_obstacle"]

HALF = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""The largest size of a head that the kernel takes; sizes are multiples of `HEAD_MULTIPLE`."""
HEAD_MULTIPLE = 8
OLDEST = (8, 0)
"""The compute capability of the oldest cards that the kernel runs on: Ampere."""
ARGUMENTS = {"window_size", "enable_gqa", "return_aux", "block_table", "seqused_k", "num_splits"}
"""The arguments of `varlen_attn` that are needed here. torch 2.13 has them; the package allows older versions."""


def varlen_obstacle(dtype: torch.dtype, head_dim: int, capability: tuple[int, int] = OLDEST) -> str:
    """Why the kernel cannot compute attention on a card of this compute capability; empty if it can.

    >>> varlen_obstacle(torch.float32, 64)
    'varlen_attn takes bfloat16 and float16, not float32'
    """
    if dtype not in HALF:
        return f"varlen_attn takes bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    if head_dim > LARGEST_HEAD or head_dim % HEAD_MULTIPLE:
        return f"varlen_attn takes heads of at most {LARGEST_HEAD}, a multiple of {HEAD_MULTIPLE}, not {head_dim}"
    if capability < OLDEST:
        return f"varlen_attn needs compute capability 8.0, and this card has {capability[0]}.{capability[1]}"
    return _missing_arguments()


@cache
def _missing_arguments() -> str:
    """Why this version of torch has no such kernel; empty if it has."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn"
    missing = sorted(ARGUMENTS - inspect.signature(varlen_attn).parameters.keys())
    return f"varlen_attn of torch {torch.__version__} has no {', '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True, eq=False)
class VarlenRows:
    """Rows side by side: the packed index of each query and key, and where each row ends (`cu_`, from 0, int32).

    `query_indices` is None if the queries are all packed tokens in their order. The kernel aligns a causal row with the
    end of its keys: its queries are the last tokens of its text.
    """

    query_indices: Int[Tensor, " q"] | None
    key_indices: Int[Tensor, " k"]
    cu_seqlens_q: Int[Tensor, " ends"]
    cu_seqlens_k: Int[Tensor, " ends"]
    max_seqlens: tuple[int, int]
    causal: bool = True

    @classmethod
    def of(cls, rows: Sequence[tuple[list[int], int]], window: int | None, device: torch.device) -> "VarlenRows":
        """Rows (a text's packed indices, and how many of the last ones are queries) that list all tokens in order.

        Keys that no query of a row sees through its window are left out.
        """
        if window is not None:
            rows = [(path[max(0, len(path) - added - window + 1) :], added) for path, added in rows]
        return cls._of(None, [path for path, _ in rows], [added for _, added in rows], device, causal=True)

    @classmethod
    def across(cls, blocks: Sequence[tuple[list[int], list[int]]], device: torch.device) -> "VarlenRows":
        """Rows (packed indices of queries and of keys) in which every query sees every key."""
        queries = np.concatenate([np.asarray(indices) for indices, _ in blocks])
        return cls._of(queries, [keys for _, keys in blocks], [len(x) for x, _ in blocks], device, causal=False)

    @classmethod
    def _of(
        cls, queries: Any, keys: Sequence[list[int]], counts: Sequence[int], device: torch.device, *, causal: bool
    ) -> "VarlenRows":
        lengths = np.array([counts, [len(x) for x in keys]])
        ends = np.concatenate([np.zeros((2, 1), np.int64), lengths.cumsum(1)], 1).astype(np.int32)
        packed = np.concatenate([np.asarray(x) for x in keys])
        indices, cu_queries, cu_keys = (
            torch.from_numpy(x).to(device) for x in (packed, ends[0].copy(), ends[1].copy())
        )
        gathered = None if queries is None else torch.from_numpy(queries).to(device)
        longest = (int(lengths[0].max()), int(lengths[1].max()))
        return cls(gathered, indices, cu_queries, cu_keys, longest, causal)

    def take(self, x: Float[Tensor, "n heads d"]) -> Float[Tensor, "q heads d"]:
        """The entries of the queries."""
        return x if self.query_indices is None else x.index_select(0, self.query_indices)


class VarlenAttention(torch.autograd.Function):
    """Attention of every packed token over its row's keys, and over the shared copy of a long context in `contexts`.

    As in `SharedContextAttention`, the two outputs are merged by their log-sum-exp, and the backward of each part uses
    the merged one. Saved are inputs, output, and one number per token and head: copies of keys live during one call.
    The gradients of keys and values are added in float32 at least.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        rows: VarlenRows,
        contexts: VarlenRows | None,
        window: int | None,
    ) -> Float[Tensor, "n heads d"]:
        out, lse = _forward(rows, q, k, v, window)
        if contexts is not None:
            assert contexts.query_indices is not None, "the queries of contexts are a part of the tokens"
            merge_attention(out, lse.T, contexts.query_indices, *_by_token(_forward(contexts, q, k, v, None)))
        ctx.rows, ctx.contexts, ctx.window = rows, contexts, window
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grad_q, *of_keys = _backward(ctx.rows, grad_outputs[0], saved, ctx.window)
        wide = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in saved[1:3]]
        _add(wide, ctx.rows, of_keys)
        if ctx.contexts is not None:
            of_queries, *of_keys = _backward(ctx.contexts, grad_outputs[0], saved, None)
            grad_q = grad_q.index_add(0, ctx.contexts.query_indices, of_queries)
            _add(wide, ctx.contexts, of_keys)
        return grad_q, *(x.to(saved[0].dtype) for x in wide), None, None, None


def _by_token(parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, both with the tokens first."""
    out, lse = parts
    return out, lse.T


def _window(rows: VarlenRows, window: int | None) -> list[int]:
    """The positions that a query sees before and after its own; -1 is all. The kernel's window leaves out its own."""
    if not rows.causal:
        return [-1, -1]
    return [-1 if window is None else window - 1, 0]


def _forward(rows: VarlenRows, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Output by query, and log-sum-exp by head and query."""
    at, (most_queries, most_keys) = _window(rows, window), rows.max_seqlens
    keys, values = (x.index_select(0, rows.key_indices) for x in (k, v))
    out, lse, _ = _operators()[0](
        rows.take(q), keys, values, rows.cu_seqlens_q, rows.cu_seqlens_k, most_queries, most_keys, at == [-1, 0],
        None, at,
        q.shape[1] != k.shape[1],
    )  # fmt: skip
    return out, lse


def _backward(
    rows: VarlenRows, grad: Tensor, saved: Sequence[Tensor], window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, and by the copies of keys and values."""
    q, k, v, out, lse = saved
    at, (most_queries, most_keys) = _window(rows, window), rows.max_seqlens
    keys, values = (x.index_select(0, rows.key_indices) for x in (k, v))
    total = lse if rows.query_indices is None else lse.index_select(1, rows.query_indices)
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout, which there is not
    return _operators()[1](
        rows.take(grad).contiguous(), rows.take(q), keys, values, rows.take(out), total, rows.cu_seqlens_q,
        rows.cu_seqlens_k,
        most_queries, most_keys, at == [-1, 0], state, None, at,
    )  # fmt: skip


def _add(wide: Sequence[Tensor], rows: VarlenRows, parts: Sequence[Tensor]) -> None:
    """Add the gradients of the copies of keys and values to those of the packed ones."""
    for whole, part in zip(wide, parts, strict=True):
        whole.index_add_(0, rows.key_indices, part.to(whole.dtype))


@cache
def _operators() -> tuple[Any, Any]:
    """torch's operators under `varlen_attn`, which itself does not take a log-sum-exp for its backward."""
    from torch.nn.attention import varlen

    return varlen._varlen_attn, varlen._varlen_attn_backward
