"""Attention layouts of the engine: decode (one new token per row) and prefill (whole contexts side by side).

On one thread, a row's results are bit-identical for any other rows in the batch. No sum depends on the other rows:
matrix products have a multiple of `ROWS` rows, and attention sums over blocks of fixed positions (see `block_end`).
Positions beyond a row's end add exactly zero. A library's fused attention does not guarantee this for different key
lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from groupwise.data import ContentSpan, Ids
from groupwise.models import attention, past

ROWS = 8
"""The number of rows of a matrix product is padded to a multiple of this."""
BLOCK_SIZE = 64
"""Positions in a block of the key-value cache; twice as many after the first two blocks."""
WIDE = 64
"""Head dimension from which the transposed layout is faster on a CPU."""

KeysValues = tuple[Float[Tensor, "layers kv w d"], Float[Tensor, "layers kv w d"]]
BlocksKeysValues = tuple[Float[Tensor, "layers _ kv _ d"], Float[Tensor, "layers _ kv _ d"]]
RowIndex = slice | Int[Tensor, " _"]


def padded(n: int, to: int) -> int:
    """`n` rounded up to a multiple of `to`, and at least `to`.

    >>> padded(0, 16), padded(16, 16), padded(17, 16)
    (16, 16, 32)
    """
    return max(-(-n // to), 1) * to


def block_end(n: int) -> int:
    """The end of the cache block with position n - 1. The first two have `BLOCK_SIZE` positions, the others twice that.

    Wide blocks keep products fast for long rows; narrow ones at the start keep short rows small.

    >>> block_end(0), block_end(64), block_end(65), block_end(129), block_end(300)
    (64, 64, 128, 256, 384)
    """
    return padded(n, BLOCK_SIZE if n <= 2 * BLOCK_SIZE else 2 * BLOCK_SIZE)


def blocks(n: int) -> list[slice]:
    """The blocks of the key-value cache that cover n positions.

    >>> blocks(200)
    [slice(0, 64, None), slice(64, 128, None), slice(128, 256, None)]
    """
    ends = [0]
    while ends[-1] < n:
        ends.append(block_end(ends[-1] + 1))
    return [slice(*pair) for pair in pairwise(ends)]


def common_prefix_len(context: int) -> int:
    """The number of prompt tokens whose keys and values all answers share: all but the last; 0 for a short prompt.

    Each row forwards the last token itself. Short contexts share nothing: a separate product would cost more.

    >>> common_prefix_len(64), common_prefix_len(65), common_prefix_len(200)
    (0, 64, 199)
    """
    return context - 1 if context > BLOCK_SIZE else 0


def transposed(x: Float[Tensor, "*_ d"]) -> bool:
    """Whether to use the transposed layout: keys as the left operand, values stored position-contiguous.

    On a CPU this reads wide heads up to three times as fast; bfloat16 would be slower.

    >>> [transposed(torch.zeros(3, d, dtype=dtype)) for d, dtype in ((128, None), (32, None), (128, torch.bfloat16))]
    [True, False, False]
    """
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and x.shape[-1] >= WIDE


def row_index(rows: Sequence[int], device: torch.device) -> RowIndex:
    """An index that selects these rows of a tensor: a slice if they are consecutive, which avoids a copy."""
    if list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows, device=device)


@dataclass(frozen=True, slots=True)
class CommonPrefix:
    """Rows with the same prefix, and one copy of the prefix's keys and values.

    The rows are padded to a multiple of `ROWS` with repetitions, so no product depends on their number.
    """

    keys: Float[Tensor, "layers kv w d"]
    values: Float[Tensor, "layers kv w d"]
    row_count: int
    rows: RowIndex
    padded_row_indices: RowIndex

    @classmethod
    def of(cls, prefix: KeysValues, rows: Sequence[int], device: torch.device) -> "CommonPrefix":
        filled = [*rows, *[rows[-1]] * (padded(len(rows), ROWS) - len(rows))]
        return cls(*prefix, len(rows), row_index(rows, device), row_index(filled, device))

    def partial_attention(
        self, layer: int, q: Float[Tensor, "n kv queries d"], first: Int[Tensor, " n"] | None, softcap: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The softmax over the prefix, unnormalised: each row's maximal score, weighted values and sum of weights.

        Values and weights are relative to the maximum. A row attends to positions from `first` on (None: all).
        """
        kv, queries = q.shape[1:3]
        query = q[self.padded_row_indices].transpose(0, 1).flatten(1, 2)
        score = _capped(query @ self.keys[layer].mT, softcap)
        if first is not None:
            position = torch.arange(score.shape[-1], device=q.device)
            hidden = position < first[self.padded_row_indices].repeat_interleave(queries)[:, None]
            score = score.masked_fill(hidden, -torch.inf)
        top = score.amax(-1, keepdim=True)
        if first is not None:
            top = top.clamp(min=torch.finfo(top.dtype).min)  # for a row that attends to nothing here
        weight = (score - top).exp_()
        partial = (top, weight @ self.values[layer], weight.sum(-1, keepdim=True))
        top, out, total = (x.view(kv, -1, queries, x.shape[-1]).transpose(0, 1)[: self.row_count] for x in partial)
        return top, out, total


@dataclass(frozen=True, slots=True)
class DecodeLayout:
    """One new token per row: append its key and value to the row's cache; attend to the cache and the shared prefix.

    Rows beyond the `attention_mask` are padding for the products and attend to nothing.
    """

    cache: Sequence[BlocksKeysValues]
    """Keys and values in contiguous blocks of positions, which makes matrix products several times faster."""
    positions: Int[Tensor, " n"]
    cache_slot: Int[Tensor, " running"]
    cache_writes: Sequence[tuple[int, Int[Tensor, " _"], Int[Tensor, " _"]]]
    """Where new keys and values go: for each block of the cache, its index, the rows, and their positions in it."""
    attention_mask: Float[Tensor, "running 1 1 seen"]
    prefixes: Sequence[CommonPrefix]

    @classmethod
    def of(
        cls,
        cache: Sequence[BlocksKeysValues],
        position: Int[Tensor, " n"],
        cache_slot: Int[Tensor, " running"],
        last_slot: int,
        prefixes: Sequence[CommonPrefix] = (),
    ) -> "DecodeLayout":
        """The layout of one decode step: each row's rotary position, and the cache slot of its new key."""
        at = torch.arange(block_end(last_slot + 1), device=cache_slot.device)
        mask = torch.zeros(len(cache_slot), len(at), dtype=cache[0][0].dtype, device=cache_slot.device)
        mask = mask.masked_fill_(at > cache_slot[:, None], -torch.inf)[:, None, None]
        writes = []
        for index, c in enumerate(blocks(last_slot + 1)):
            rows = ((cache_slot >= c.start) & (cache_slot < c.stop)).nonzero().squeeze(1)
            if len(rows):
                writes.append((index, rows, cache_slot[rows] - c.start))
        return cls(cache, position, cache_slot, writes, mask, prefixes)

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Float[Tensor, "n heads d"]:
        n, (kv, d), swap = len(self.cache_slot), k.shape[1:], transposed(k)
        for block, rows, at in self.cache_writes:
            keys, values = self.cache[block]
            source = slice(n) if len(rows) == n else rows
            keys[layer][rows, :, at], values[layer][rows, :, at] = k[source], v[source]
        padding = len(q) - n
        q = (q[:n] * d**-0.5).view(n, kv, -1, d)
        positions = blocks(self.attention_mask.shape[-1])
        mask, first = self._within(window)
        score = torch.cat([_times(q, keys[layer][:n].mT, swap) for _, (keys, _) in zip(positions, self.cache)], -1)
        score = _capped(score, softcap) + mask
        top = score.amax(-1, keepdim=True)
        partials = [(prefix.rows, *prefix.partial_attention(layer, q, first, softcap)) for prefix in self.prefixes]
        for rows, prefix_top, _, _ in partials:
            top[rows] = torch.maximum(top[rows], prefix_top)
        weight = score.sub_(top).exp_()
        out, total = q.new_zeros(()), q.new_zeros(())
        for c, (_, values) in zip(positions, self.cache):
            out = out + _times(weight[..., c], values[layer][:n], swap)
            total = total + weight[..., c].sum(-1, keepdim=True)
        for rows, prefix_top, values, weights in partials:
            scale = (prefix_top - top[rows]).exp()
            out[rows] += scale * values
            total[rows] += scale * weights
        return F.pad((out / total).reshape(n, -1, d), (0, 0, 0, 0, 0, padding))

    def _within(self, window: int | None) -> tuple[Tensor, Tensor | None]:
        """The mask of sliding-window attention, and each row's first visible position (None if all are visible)."""
        if window is None or window >= self.attention_mask.shape[-1] + max(
            (p.keys.shape[2] for p in self.prefixes), default=0
        ):
            return self.attention_mask, None
        at = torch.arange(self.attention_mask.shape[-1], device=self.cache_slot.device)
        hidden = at <= self.cache_slot[:, None] - window
        first = self.positions[: len(self.cache_slot)] + 1 - window
        return self.attention_mask.masked_fill(hidden[:, None, None], -torch.inf), first


@dataclass(frozen=True, slots=True)
class PrefillLayout:
    """The layout of a prefill: whole prompts side by side, each padded at its end to a multiple of `ROWS` tokens."""

    tokens: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    padded_lengths: tuple[int, ...]
    keys_values: list[tuple[Float[Tensor, "n kv d"], Float[Tensor, "n kv d"]]]
    """The keys and values of each layer, which the forward pass fills in."""
    content_spans: Sequence[ContentSpan] = ()
    """The prompts with pictures."""

    @classmethod
    def of(cls, contexts: Sequence[Ids], device: torch.device | str, contents: Sequence[str] = ()) -> "PrefillLayout":
        """The layout of prompts. `contents` are the hashes of their content besides tokens, such as pictures."""
        widths = tuple(padded(len(c), ROWS) for c in contexts)
        tokens = [t for c, w in zip(contexts, widths) for t in (*c, *(0,) * (w - len(c)))]
        position = [p for w in widths for p in range(w)]
        starts = accumulate(widths, initial=0)
        spans = [ContentSpan(content, c, start) for content, c, start in zip(contents, contexts, starts) if content]
        return cls(torch.tensor(tokens, device=device), torch.tensor(position, device=device), widths, [], spans)

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Float[Tensor, "n heads d"]:
        self.keys_values.append((k, v))
        out = torch.empty_like(q)
        at = 0
        for width, equal in groupby(self.padded_lengths):
            block = slice(at, at := at + width * len(list(equal)))
            a, b, c = (x[block].unflatten(0, (-1, width)).transpose(1, 2) for x in (q, k, v))
            mask = None if window is None or window >= width else past(width, q.device).triu(1 - window)
            out[block] = attention(a, b, c, mask, softcap).transpose(1, 2).flatten(0, 1)
        return out

    def split(self) -> list[KeysValues]:
        """The prefilled keys and values, one pair of tensors per prompt, including its padding."""
        keys, values = (torch.stack(x).transpose(1, 2).split(self.padded_lengths, 2) for x in zip(*self.keys_values))
        return list(zip(keys, values))


def _times(few: Tensor, many: Tensor, swap: bool) -> Tensor:
    """`few @ many`: queries (few) with keys, or weights with values (many); `swap` computes the transposed product."""
    return (many.mT @ few.mT).mT if swap else few @ many


def _capped(score: Tensor, softcap: float | None) -> Tensor:
    return score if softcap is None else softcap * torch.tanh(score / softcap)
