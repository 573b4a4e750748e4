"""How the packed tokens of a piece see each other when what samples have in common is forwarded once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEAST = 16
"""Rows of no more tokens than this are all of one size."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows of similar size, padded to one rectangle: packed indices of what asks, of what is asked, and who sees whom.

    A padded slot repeats its own row's last index, so that nothing foreign can come in through it, not even NaN.
    Without a mask rows are whole texts: each token sees itself and what stands before it.
    """

    queries: Int[Tensor, "rows asks"]
    keys: Int[Tensor, "rows sees"]
    mask: Bool[Tensor, "rows 1 asks sees"] | None

    def to(self, device: torch.device | str) -> "Block":
        mask = None if self.mask is None else self.mask.to(device)
        return Block(self.queries.to(device), self.keys.to(device), mask)

    def attend(
        self,
        q: Float[Tensor, "n heads d"],
        k: Float[Tensor, "n kv d"],
        v: Float[Tensor, "n kv d"],
        window: int | None,
        softcap: float | None,
    ) -> Float[Tensor, "slots heads d"]:
        """Attention of every slot, rows one after the other, padding included."""
        q, k, v = (_gather(x, at).transpose(1, 2) for x, at in ((q, self.queries), (k, self.keys), (v, self.keys)))
        mask, wide = self.mask, k.shape[2]
        if window is not None and window < wide:  # who sees m keys sees those at 0 to m - 1
            mask = past(wide, q.device) if mask is None else mask
            mask = mask & (torch.arange(wide, device=q.device) >= mask.sum(-1, keepdim=True) - window)
        return attention(q, k, v, mask, softcap).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """Samples packed in one dimension, what they begin with in common once: whole contexts, then answers as a tree.

    A sample sees its context and its own past. Token `target[j]` (all samples' tokens, in the given order) is predicted
    by the hidden state of row `source[j]`. The last token of a sample predicts nothing and is not forwarded; a sample
    without tokens leaves no trace.

    >>> shared = Shared.of([(1, 2), (1, 2), (1, 2)], [(7, 8), (9,), (7, 6, 5)])
    >>> shared.tokens, shared.position
    (tensor([1, 2, 7, 6]), tensor([0, 1, 2, 3]))
    >>> shared.source, shared.target
    (tensor([1, 2, 1, 1, 2, 3]), tensor([7, 8, 9, 7, 6, 5]))
    """

    tokens: Int[Tensor, " n"]
    position: Int[Tensor, " n"]
    source: Int[Tensor, " m"]
    target: Int[Tensor, " m"]
    blocks: tuple[Block, ...]
    slot: Int[Tensor, " n"]  # where the blocks' output holds each packed token

    @classmethod
    def of(
        cls,
        contexts: Sequence[Sequence[int]],
        tokens: Sequence[Sequence[int]],
        *,
        device: torch.device | str = "cpu",
    ) -> "Shared":
        """The layout of `tokens[i]` after `contexts[i]`. ValueError for an empty context."""
        if len(contexts) != len(tokens):
            raise ValueError(f"{len(contexts)} contexts for {len(tokens)} samples: each sample needs its own")
        if not all(map(len, contexts)):
            raise ValueError("a context is empty: the first token of an answer needs one that it follows")
        live = [(tuple(c), tuple(t)) for c, t in zip(contexts, tokens) if len(t)]
        packed, paths, rows = _packed([(c, t[:-1]) for c, t in live])
        blocks, slots = _blocks(rows)
        position = chain(*(range(len(path) - own, len(path)) for path, own in rows))
        source = chain(*(path[len(c) - 1 :] for (c, _), path in zip(live, paths)))
        target = chain(*(t for _, t in live))
        return cls(
            tokens=torch.tensor(packed, dtype=torch.long, device=device),
            position=torch.tensor(list(position), dtype=torch.long, device=device),
            source=torch.tensor(list(source), dtype=torch.long, device=device),
            target=torch.tensor(list(target), dtype=torch.long, device=device),
            blocks=tuple(b.to(device) for b in blocks),
            slot=slots.to(device),
        )

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
        """Scaled dot-product attention of every packed token over what it may see."""
        found = [block.attend(q, k, v, window, softcap) for block in self.blocks]
        return _gather(torch.cat([q[:0], *found]), self.slot)


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


def _gather(x: Float[Tensor, "n heads d"], at: Int[Tensor, " *shape"]) -> Float[Tensor, "*shape heads d"]:
    """`x[at]`; but the gradient of that adds in whatever order threads come, and this one's in order."""
    return x.index_select(0, at.flatten()).unflatten(0, at.shape)


Text = tuple[int, ...]
Row = tuple[list[int], int]
"""Packed places of a text from its first token on, and how many of the last of them are the row's own."""


def _packed(texts: Sequence[tuple[Text, Text]]) -> tuple[list[int], list[list[int]], list[Row]]:
    """Tokens of (context, what follows it) packed, the places of each whole text among them, and their rows.

    A text repeats nothing of the one before it in the order of contexts and tokens: there nobody begins more alike.
    """
    order = sorted(range(len(texts)), key=texts.__getitem__)
    same = [0] * len(texts)
    for before, after in pairwise(order):
        (context, tail), (other, longer) = texts[before], texts[after]
        if context == other:
            same[after] = next((i for i, (a, b) in enumerate(zip(tail, longer)) if a != b), len(tail))
    contexts = list(dict.fromkeys(context for context, _ in texts))
    own = [*contexts, *(tail[known:] for (_, tail), known in zip(texts, same))]
    places = [list(range(*ends)) for ends in pairwise(accumulate(map(len, own), initial=0))]
    newest, paths = dict(zip(contexts, places)), [[]] * len(texts)
    for i in order:
        context = texts[i][0]
        newest[context] = paths[i] = newest[context][: len(context) + same[i]] + places[len(contexts) + i]
    rows = [(path, len(piece)) for path, piece in zip([*places[: len(contexts)], *paths], own) if piece]
    return list(chain(*own)), paths, rows


def _blocks(rows: Sequence[Row]) -> tuple[list[Block], Int[Tensor, " n"]]:
    """Rectangles for rows, and where in their output each packed token stands. By NumPy, quicker with small arrays."""
    slot = np.zeros(sum(own for _, own in rows), np.int64)
    blocks, at = [], 0
    for members in _alike(rows):
        wide = max(len(path) for path, _ in members)
        keys = np.array([path + path[-1:] * (wide - len(path)) for path, _ in members])
        size = np.array([[len(path), own] for path, own in members])
        first, own = size[:, :1] - size[:, 1:], size[:, 1:]
        ask = np.minimum(np.arange(own.max()), own - 1)  # a padded slot repeats the last of its row
        queries = np.take_along_axis(keys, first + ask, 1)
        mask = None
        if first.any():
            mask = torch.from_numpy(np.arange(wide) <= (first + ask)[:, None, :, None])  # key j stands at position j
        blocks.append(Block(torch.from_numpy(queries), torch.from_numpy(keys), mask))
        real = np.arange(ask.shape[1]) < own
        slot[queries[real]] = at + np.flatnonzero(real)
        at += real.size
    return blocks, torch.from_numpy(slot)


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in buckets whose sizes differ by less than a factor of two: little padding, few calls."""
    buckets: dict[tuple[int, int], list[Row]] = {}
    for path, own in rows:
        size = (max(own, LEAST) - 1).bit_length(), (max(len(path), LEAST) - 1).bit_length()
        buckets.setdefault(size, []).append((path, own))
    return [buckets[size] for size in sorted(buckets)]
