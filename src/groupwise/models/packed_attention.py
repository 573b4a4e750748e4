"""Attention among packed tokens: rows padded to rectangles, and what many rows see asked once for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["attention", "past"]

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
FLASH_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of similar size, padded to one rectangle: packed indices of what asks, of what is asked, and who sees whom.

    A padded slot repeats its own row's last index, so that nothing foreign can come in through it, not even NaN.
    Without a mask everything is seen; or, where `causal`, rows are whole texts, and each token sees itself and what
    stands before it.
    """

    queries: Int[Tensor, "rows asks"]
    keys: Int[Tensor, "rows sees"]
    mask: Bool[Tensor, "rows 1 asks sees"] | None = None
    causal: bool = False

    def to(self, device: torch.device | str) -> "Block":
        mask = None if self.mask is None else self.mask.to(device)
        return Block(self.queries.to(device), self.keys.to(device), mask, self.causal)

    def of(
        self, q: Float[Tensor, "n heads d"], k: Float[Tensor, "n kv d"], v: Float[Tensor, "n kv d"]
    ) -> tuple[Float[Tensor, "rows heads asks d"], Float[Tensor, "rows kv sees d"], Float[Tensor, "rows kv sees d"]]:
        """What asks and what is asked, of everything packed."""
        return gathered(q, self.queries), gathered(k, self.keys), gathered(v, self.keys)

    def attend(
        self,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        window: int | None,
        softcap: float | None,
    ) -> Float[Tensor, "slots heads d"]:
        """Attention of every slot, rows one after the other, padding included. Not where everything is seen."""
        mask, wide = self.mask, self.keys.shape[1]
        if window is not None and window < wide:  # who sees m keys sees those at 0 to m - 1
            mask = past(wide, q.device) if mask is None else mask
            mask = mask & (torch.arange(wide, device=q.device) >= mask.sum(-1, keepdim=True) - window)
        return attention(*self.of(q, k, v), mask, softcap).transpose(1, 2).flatten(0, 1)


class Merged(torch.autograd.Function):
    """Attention of tokens whose keys lie in two parts: a block of their own, and one copy of what many rows see.

    Each part tells what it found and the logarithm of its weights' sum; by these the two become one. On the way back a
    part is asked with the sum of *both*, so that its weights, and with them all gradients, are those of the whole.
    Nothing is kept but what came in, what went out, and a number a token and head. CPU, without window or soft cap.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        own: Sequence[Block],
        slot: Int[Tensor, " n"],
        common: Sequence[Block],
    ) -> Float[Tensor, "n heads d"]:
        found, mass = (torch.cat(x)[slot] for x in zip(*(_look(block, q, k, v) for block in own)))
        for block in common:
            asks, (there, weight) = block.queries.flatten(), _look(block, q, k, v)
            both = torch.logaddexp(mass[asks], weight)
            share, rest = ((x - both).exp()[..., None] for x in (weight, mass[asks]))
            found[asks] = (rest * found[asks] + share * there).to(q.dtype)
            mass[asks] = both
        ctx.own, ctx.slot, ctx.common = own, slot, common
        ctx.save_for_backward(q, k, v, found, mass)
        return found

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, found, mass = ctx.saved_tensors
        back = [torch.zeros_like(x) for x in (q, k, v)]
        slots = _slots(pulls[0], ctx.own, ctx.slot)
        asked = (gathered(pulls[0], block.queries) for block in ctx.common)
        for block, pull in zip((*ctx.own, *ctx.common), (*slots, *asked)):
            out, total = gathered(found, block.queries), gathered(mass, block.queries)
            mask = _added(block.mask, q.dtype)
            parts = FLASH_BACK(pull, *block.of(q, k, v), out, total, 0.0, block.causal, attn_mask=mask)
            for whole, part, at in zip(back, parts, (block.queries, block.keys, block.keys)):
                whole.index_add_(0, at.flatten(), part.transpose(1, 2).flatten(0, 1))
        return (*back, None, None, None)


def _look(block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What every slot of a block finds, and the logarithm of the sum of its weights."""
    mask = _added(block.mask, q.dtype)
    found, mass = FLASH(*block.of(q, k, v), 0.0, block.causal, attn_mask=mask)
    return found.transpose(1, 2).flatten(0, 1), mass.transpose(1, 2).flatten(0, 1)


def _slots(pull: Tensor, blocks: Sequence[Block], slot: Tensor) -> list[Tensor]:
    """What pulls at the slots of each block: at padding nothing."""
    sizes = [block.queries.numel() for block in blocks]
    slots = pull.new_zeros(sum(sizes), *pull.shape[1:]).index_copy_(0, slot, pull).split(sizes)
    return [x.unflatten(0, block.queries.shape).transpose(1, 2) for x, block in zip(slots, blocks)]


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if mask is None else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


def attention(
    q: Float[Tensor, "rows heads asks d"],
    k: Float[Tensor, "rows kv sees d"],
    v: Float[Tensor, "rows kv sees d"],
    mask: Bool[Tensor, "*rows asks sees"] | None,
    softcap: float | None = None,
) -> Float[Tensor, "rows heads asks d"]:
    """`softmax(q k' / sqrt(d)) v` over what the mask lets each see; with a soft cap c, a score x is `c tanh(x / c)`.

    Without a mask asks and keys are the same tokens, and each sees itself and those before it.
    """
    grouped = q.shape[1] // k.shape[1]
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped > 1)
    mask = past(k.shape[2], q.device) if mask is None else mask
    k, v = (x.repeat_interleave(grouped, 1) for x in (k, v))
    score = softcap * torch.tanh(q @ k.mT * (q.shape[-1] ** -0.5 / softcap))
    return score.masked_fill(~mask, -torch.inf).softmax(-1) @ v


def past(n: int, device: torch.device) -> Bool[Tensor, "n n"]:
    """Each of n tokens sees itself and those before it."""
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


def gathered(x: Float[Tensor, "n heads *d"], at: Int[Tensor, "rows many"]) -> Float[Tensor, "rows heads many *d"]:
    """`x[at]`, heads first; but the gradient of that adds in whatever order threads come, and this one's in order."""
    return x.index_select(0, at.flatten()).unflatten(0, at.shape).transpose(1, 2)
