"""Attention over packed tokens: padded blocks of rows, and one pass over keys that many rows share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["attention", "past"]

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """Rows of similar size, padded to one rectangle: indices of the queries, indices of the keys, attention mask.

    A padded slot repeats its own row's last index, so that other rows, and their NaN, cannot enter through it. Without
    a mask, every query attends to every key; with `causal`, rows are whole texts and attention is causal.
    """

    query_indices: Int[Tensor, "rows queries"]
    key_indices: Int[Tensor, "rows keys"]
    mask: Bool[Tensor, "rows 1 queries keys"] | None = None
    causal: bool = False

    def to(self, device: torch.device | str) -> "PaddedRows":
        mask = None if self.mask is None else self.mask.to(device)
        return PaddedRows(self.query_indices.to(device), self.key_indices.to(device), mask, self.causal)

    def gather(
        self, q: Float[Tensor, "n heads d"], k: Float[Tensor, "n kv d"], v: Float[Tensor, "n kv d"]
    ) -> tuple[Float[Tensor, "rows heads queries d"], Float[Tensor, "rows kv keys d"], Float[Tensor, "rows kv keys d"]]:
        """The block's queries, keys and values, gathered from the packed ones."""
        return gather_rows(q, self.query_indices), gather_rows(k, self.key_indices), gather_rows(v, self.key_indices)

    def attend(
        self,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        window: int | None,
        softcap: float | None,
    ) -> Float[Tensor, "slots heads d"]:
        """Attention output at every position (slot), row after row, with padding. Needs a mask or `causal`."""
        mask, width = self.mask, self.key_indices.shape[1]
        if window is not None and window < width:  # a query with m visible keys sees keys 0 to m - 1
            mask = past(width, q.device) if mask is None else mask
            mask = mask & (torch.arange(width, device=q.device) >= mask.sum(-1, keepdim=True) - window)
        return attention(*self.gather(q, k, v), mask, softcap).transpose(1, 2).flatten(0, 1)


class SharedContextAttention(torch.autograd.Function):
    """Attention over two sets of keys: the row's own block, and one shared copy of its long context.

    Each part returns its output and the log-sum-exp of its scores, from which the two outputs are merged. In backward,
    each part uses the *merged* log-sum-exp, so its weights and all gradients equal full attention's. Only the
    inputs, the output, and one number per token and head are saved. CPU only, without window or soft cap.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        blocks: Sequence[PaddedRows],
        slot: Int[Tensor, " n"],
        contexts: Sequence[PaddedRows],
    ) -> Float[Tensor, "n heads d"]:
        out, lse = (torch.cat(x)[slot] for x in zip(*(_flash(block, q, k, v) for block in blocks)))
        for block in contexts:
            merge_attention(out, lse, block.query_indices.flatten(), *_flash(block, q, k, v))
        ctx.blocks, ctx.slot, ctx.contexts = blocks, slot, contexts
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (q, k, v)]
        row_grads = _scatter_to_slots(grad_outputs[0], ctx.blocks, ctx.slot)
        context_grads = (gather_rows(grad_outputs[0], block.query_indices) for block in ctx.contexts)
        for block, grad in zip((*ctx.blocks, *ctx.contexts), (*row_grads, *context_grads)):
            block_out, block_lse = gather_rows(out, block.query_indices), gather_rows(lse, block.query_indices)
            mask = _additive(block.mask, q.dtype)
            inputs = block.gather(q, k, v)
            parts = FLASH_BACKWARD(grad, *inputs, block_out, block_lse, 0.0, block.causal, attn_mask=mask)
            for whole, part, at in zip(grads, parts, (block.query_indices, block.key_indices, block.key_indices)):
                whole.index_add_(0, at.flatten(), part.transpose(1, 2).flatten(0, 1))
        return (*grads, None, None, None)


def merge_attention(
    out: Float[Tensor, "n heads d"],
    lse: Float[Tensor, "n heads"],
    queries: Int[Tensor, " q"],
    context_out: Float[Tensor, "q heads d"],
    context_lse: Float[Tensor, "q heads"],
) -> None:
    """Merge the attention of some queries over more keys into `out` and `lse`, in place, by their log-sum-exp."""
    total = torch.logaddexp(lse[queries], context_lse)
    context_share, row_share = ((x - total).exp()[..., None] for x in (context_lse, lse[queries]))
    out[queries] = (row_share * out[queries] + context_share * context_out).to(out.dtype)
    lse[queries] = total


def _flash(block: PaddedRows, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention output and log-sum-exp at every position (slot) of a padded block."""
    mask = _additive(block.mask, q.dtype)
    out, lse = FLASH(*block.gather(q, k, v), 0.0, block.causal, attn_mask=mask)
    return out.transpose(1, 2).flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)


def _scatter_to_slots(grad: Tensor, blocks: Sequence[PaddedRows], slot: Tensor) -> list[Tensor]:
    """The gradient at each position (slot) of a padded block, zero at padding."""
    sizes = [block.query_indices.numel() for block in blocks]
    slots = grad.new_zeros(sum(sizes), *grad.shape[1:]).index_copy_(0, slot, grad).split(sizes)
    return [x.unflatten(0, block.query_indices.shape).transpose(1, 2) for x, block in zip(slots, blocks)]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask as numbers to add to scores: 0 where True, -inf elsewhere."""
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


def attention(
    q: Float[Tensor, "rows heads queries d"],
    k: Float[Tensor, "rows kv keys d"],
    v: Float[Tensor, "rows kv keys d"],
    mask: Bool[Tensor, "*rows queries keys"] | None,
    softcap: float | None = None,
) -> Float[Tensor, "rows heads queries d"]:
    """`softmax(q k' / sqrt(d)) v` over the keys that the mask allows; with soft cap c, a score x becomes
    `c tanh(x / c)`.

    Without a mask, queries and keys are the same tokens and attention is causal.
    """
    grouped = q.shape[1] // k.shape[1]
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped > 1)
    mask = past(k.shape[2], q.device) if mask is None else mask
    k, v = (x.repeat_interleave(grouped, 1) for x in (k, v))
    score = softcap * torch.tanh(q @ k.mT * (q.shape[-1] ** -0.5 / softcap))
    return score.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def past(n: int, device: torch.device) -> Bool[Tensor, "n n"]:
    """The causal attention mask of n tokens."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


def gather_rows(x: Float[Tensor, "n heads *d"], at: Int[Tensor, "rows many"]) -> Float[Tensor, "rows heads many *d"]:
    """`x[at]`, heads first. Its gradient is summed in a fixed order, so unlike with `x[at]` it is deterministic."""
    return x.index_select(0, at.flatten()).unflatten(0, at.shape).transpose(1, 2)
